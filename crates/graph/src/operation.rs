//! Methods that append operations, generated from a table.

use coremill_tensor::DType;

use crate::arg::{Arg, Args, Bools, Ints};
use crate::call::Call;
use crate::tensor::Tensor;

/// Type of an operation's parameter.
pub(crate) trait Parameter<'g> {
    fn bind(self, name: &'static str, call: &mut Call<'g>);
}

impl<'g> Parameter<'g> for Arg<'g> {
    fn bind(self, name: &'static str, call: &mut Call<'g>) {
        call.arg(name, self);
    }
}

impl<'g> Parameter<'g> for Args<'g> {
    fn bind(self, name: &'static str, call: &mut Call<'g>) {
        call.many(name, self.0);
    }
}

impl<'g> Parameter<'g> for Ints {
    fn bind(self, name: &'static str, call: &mut Call<'g>) {
        call.ints(name, self);
    }
}

impl<'g> Parameter<'g> for Bools {
    fn bind(self, name: &'static str, call: &mut Call<'g>) {
        call.bools(name, self);
    }
}

impl<'g> Parameter<'g> for String {
    fn bind(self, name: &'static str, call: &mut Call<'g>) {
        call.text(name, &self);
    }
}

impl<'g> Parameter<'g> for DType {
    fn bind(self, name: &'static str, call: &mut Call<'g>) {
        call.text(name, self.name());
    }
}

/// Optional parameters of an operation.
pub(crate) trait Options<'g> {
    fn bind(self, call: &mut Call<'g>);
}

/// Results of an operation.
pub(crate) trait Results<'g> {
    fn of(call: Call<'g>) -> Self;
}

impl<'g> Results<'g> for Tensor<'g> {
    fn of(call: Call<'g>) -> Tensor<'g> {
        call.one()
    }
}

impl<'g> Results<'g> for (Tensor<'g>, Tensor<'g>) {
    fn of(call: Call<'g>) -> (Tensor<'g>, Tensor<'g>) {
        call.several::<2>().into()
    }
}

impl<'g> Results<'g> for (Tensor<'g>, Tensor<'g>, Tensor<'g>) {
    fn of(call: Call<'g>) -> (Tensor<'g>, Tensor<'g>, Tensor<'g>) {
        call.several::<3>().into()
    }
}

impl<'g, const N: usize> Results<'g> for [Tensor<'g>; N] {
    fn of(call: Call<'g>) -> [Tensor<'g>; N] {
        call.several()
    }
}

impl<'g> Results<'g> for Vec<Tensor<'g>> {
    fn of(call: Call<'g>) -> Vec<Tensor<'g>> {
        call.all()
    }
}

/// Declares methods that append operations.
///
/// A row contains the type of the method's receiver, the required parameters, the results and the operation.
/// Optional parameters follow in braces and become a struct with setters. A method of `Tensor` binds the
/// tensor to the first parameter.
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $owner:ident::$name:ident($($required:tt)*) -> $result:ty,
        $kind:ident $(<$life:lifetime>)? $({ $($field:ident: $type:ty,)* })?;
    )*) => {$(
        operation! {
            $kind [$(<$life>)?] [$(#[$doc])* $owner $name ($($required)*)] [$result]
            $({ $($field: $type,)* })?
        }
    )*};
}

/// Declares the struct with an operation's optional parameters, and its method.
macro_rules! operation {
    ($kind:ident [$($life:tt)*] [$($method:tt)*] [$result:ty] { $($field:ident: $type:ty,)* }) => {
        #[doc = concat!("Optional parameters of [`OpKind::", stringify!($kind), "`].")]
        #[derive(Clone, Debug, Default)]
        pub struct $kind $($life)* {
            $($field: Option<$type>,)*
        }

        impl $($life)* $kind $($life)* {
            /// Returns options without any parameters set.
            pub fn new() -> Self {
                Self::default()
            }

            $(
                #[doc = concat!("Sets `", stringify!($field), "`.")]
                pub fn $field(mut self, $field: impl Into<$type>) -> Self {
                    self.$field = Some($field.into());
                    self
                }
            )*
        }

        impl<'g> Options<'g> for $kind $($life)* {
            fn bind(self, call: &mut Call<'g>) {
                $(
                    if let Some(value) = self.$field {
                        value.bind(stringify!($field), call);
                    }
                )*
            }
        }

        method! { $kind $($method)* [options: $kind $($life)*] [$result] }
    };
    ($kind:ident [] [$($method:tt)*] [$result:ty]) => {
        method! { $kind $($method)* [] [$result] }
    };
}

/// Declares the method of an operation.
macro_rules! method {
    (
        $kind:ident $(#[$doc:meta])* Tensor $name:ident
        ($receiver:ident $(, $required:ident: $type:ty)* $(,)?)
        [$($options:ident: $options_type:ty)?] [$result:ty]
    ) => {
        impl<'g> Tensor<'g> {
            $(#[$doc])*
            #[track_caller]
            pub fn $name(
                self
                $(, $required: impl Into<$type>)*
                $(, $options: $options_type)?
            ) -> $result {
                let mut call = Call::new(self.graph(), OpKind::$kind);
                call.arg(stringify!($receiver), self);
                $(Parameter::bind(Into::<$type>::into($required), stringify!($required), &mut call);)*
                $(Options::bind($options, &mut call);)?
                Results::of(call)
            }
        }
    };
    (
        $kind:ident $(#[$doc:meta])* Graph $name:ident
        ($($required:ident: $type:ty),* $(,)?)
        [$($options:ident: $options_type:ty)?] [$result:ty]
    ) => {
        impl Graph {
            $(#[$doc])*
            #[track_caller]
            pub fn $name<'g>(
                &'g self
                $(, $required: impl Into<$type>)*
                $(, $options: $options_type)?
            ) -> $result {
                let mut call = Call::new(self, OpKind::$kind);
                $(Parameter::bind(Into::<$type>::into($required), stringify!($required), &mut call);)*
                $(Options::bind($options, &mut call);)?
                Results::of(call)
            }
        }
    };
}
