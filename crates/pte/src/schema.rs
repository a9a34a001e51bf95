//! Field numbers of ExecuTorch's tables. They are stable, as new fields are appended.

/// Declares a module per table with field numbers from 0, and the number of fields.
macro_rules! tables {
    ($($table:ident { $($field:ident)* })*) => {
        $(pub(crate) mod $table {
            tables!(@fields 0; $($field)*);
        })*
    };
    (@fields $number:expr; $field:ident $($rest:ident)*) => {
        pub(crate) const $field: u16 = $number;
        tables!(@fields $number + 1; $($rest)*);
    };
    (@fields $number:expr;) => {
        pub(crate) const COUNT: u16 = $number;
    };
}

tables! {
    program {
        VERSION PLANS CONSTANT_BUFFERS DELEGATE_DATA SEGMENTS CONSTANT_SEGMENT MUTABLE_SEGMENTS NAMED_DATA
    }
    plan {
        NAME CONTAINER VALUES INPUTS OUTPUTS CHAINS OPERATORS DELEGATES BUFFER_SIZES BUFFER_DEVICES
    }
    container { INPUTS OUTPUTS }
    chain { INPUTS OUTPUTS INSTRUCTIONS STACK_TRACES }
    frame_list { ITEMS }
    frame { FILE LINE FUNCTION SOURCE }
    union { TYPE VALUE }
    call { CALLEE ARGUMENTS }
    pair { FIRST SECOND }
    operator { NAME OVERLOAD }
    delegate { ID PROCESSED COMPILE_SPECS }
    data_reference { LOCATION INDEX }
    compile_spec { KEY VALUE }
    single { VALUE }
    tensor {
        SCALAR_TYPE STORAGE_OFFSET SIZES DIM_ORDER REQUIRES_GRAD DATA_BUFFER ALLOCATION LAYOUT DYNAMISM EXTRA
    }
    allocation { MEMORY OFFSET_LOW OFFSET_HIGH }
    tensor_extra { MUTABLE_SEGMENT NAME LOCATION DEVICE_KIND DEVICE_INDEX }
    buffer_device { BUFFER DEVICE_KIND DEVICE_INDEX }
    segment { OFFSET SIZE }
    subsegments { SEGMENT OFFSETS }
    named_data { KEY SEGMENT TENSOR_LAYOUT }
    flat_tensor { VERSION SEGMENTS NAMED_DATA }
    tensor_layout { SCALAR_TYPE SIZES DIM_ORDER }
}

/// Types of the instruction union.
pub(crate) mod instruction {
    pub(crate) const KERNEL_CALL: u8 = 1;
    pub(crate) const DELEGATE_CALL: u8 = 2;
    pub(crate) const MOVE: u8 = 3;
    pub(crate) const JUMP_FALSE: u8 = 4;
    pub(crate) const FREE: u8 = 5;
}

/// Types of the value union.
pub(crate) mod value {
    pub(crate) const NULL: u8 = 1;
    pub(crate) const INT: u8 = 2;
    pub(crate) const BOOL: u8 = 3;
    pub(crate) const DOUBLE: u8 = 4;
    pub(crate) const TENSOR: u8 = 5;
    pub(crate) const STRING: u8 = 6;
    pub(crate) const INT_LIST: u8 = 7;
    pub(crate) const DOUBLE_LIST: u8 = 8;
    pub(crate) const BOOL_LIST: u8 = 9;
    pub(crate) const TENSOR_LIST: u8 = 10;
    pub(crate) const OPTIONAL_TENSOR_LIST: u8 = 11;
}

/// Location of a delegate's payload.
pub(crate) mod location {
    /// In the tables.
    pub(crate) const INLINE: i8 = 0;
    /// In a segment.
    pub(crate) const SEGMENT: i8 = 1;
}

/// Location of a tensor's elements.
pub(crate) mod tensor_location {
    pub(crate) const PROGRAM: i8 = 0;
    pub(crate) const EXTERNAL: i8 = 1;
}
