//! The function that `objc2` calls to catch exceptions.
#![no_std]

use core::ffi::c_void;

unsafe extern "C-unwind" {
    /// Calls `act` with `context`. Returns 1 and the exception if one is raised.
    #[link_name = "standin_try_catch"]
    pub fn try_catch(
        act: extern "C-unwind" fn(*mut c_void),
        context: *mut c_void,
        exception: *mut *mut c_void,
    ) -> u8;
}
