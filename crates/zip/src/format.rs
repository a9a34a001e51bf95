//! Records of the format, as in section 4.3 of APPNOTE.TXT.

pub(crate) const END: u32 = 0x0605_4b50;
pub(crate) const END_BYTES: usize = 22;
pub(crate) const END_64: u32 = 0x0606_4b50;
pub(crate) const END_64_BYTES: usize = 56;
pub(crate) const LOCATOR_64: u32 = 0x0706_4b50;
pub(crate) const LOCATOR_64_BYTES: usize = 20;
pub(crate) const CENTRAL: u32 = 0x0201_4b50;
pub(crate) const CENTRAL_BYTES: usize = 46;
pub(crate) const LOCAL: u32 = 0x0403_4b50;
pub(crate) const LOCAL_BYTES: usize = 30;
/// Maximum length of the comment after the end record, which has a 16-bit length field.
pub(crate) const MAX_COMMENT: usize = 0xffff;
pub(crate) const FLAG_ENCRYPTED: u16 = 1;
pub(crate) const FLAG_UTF8: u16 = 1 << 11;
pub(crate) const METHOD_STORED: u16 = 0;
pub(crate) const METHOD_DEFLATED: u16 = 8;
pub(crate) const EXTRA_ZIP64: u16 = 1;
