use std::fmt;
use std::str::FromStr;

/// The arithmetic in which a program is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// Floats are computed in fp32, for all types, and stored in fp32 except for caches of keys and values.
    #[default]
    Fast,
    /// The result of each operation is rounded to its type, as a device does that stores it: fp16
    /// values overflow and lose precision where they would there.
    Rounded,
    /// fp16 operations compute as the Neural Engine does: sums of products in fixed point, table-based
    /// functions, ties away from zero. See [`device`](crate::device).
    Ane,
    /// fp16 operations compute as Core ML on the CPU does: sums of products in half precision.
    CoremlCpu,
}

/// A name that is not one of [`Numerics::ALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownNumerics(String);

impl Numerics {
    /// All of them.
    pub const ALL: [Numerics; 4] =
        [Numerics::Fast, Numerics::Rounded, Numerics::Ane, Numerics::CoremlCpu];

    /// The name, which [`FromStr`] accepts.
    pub const fn name(self) -> &'static str {
        match self {
            Numerics::Fast => "fast",
            Numerics::Rounded => "rounded",
            Numerics::Ane => "ane",
            Numerics::CoremlCpu => "coreml-cpu",
        }
    }

    /// Whether the result of each operation is rounded to its type.
    pub const fn rounds(self) -> bool {
        !matches!(self, Numerics::Fast)
    }

    /// Whether products, sums and functions follow the rules of a device instead of fp32.
    pub const fn is_device(self) -> bool {
        matches!(self, Numerics::Ane | Numerics::CoremlCpu)
    }

    /// The arithmetic of constants, which Core ML computes before any device sees them.
    pub const fn of_constants(self) -> Numerics {
        match self {
            Numerics::Fast => Numerics::Fast,
            Numerics::Rounded | Numerics::Ane | Numerics::CoremlCpu => Numerics::Rounded,
        }
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for UnknownNumerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown numerics `{}`; expected `fast`, `rounded`, `ane` or `coreml-cpu`",
            self.0
        )
    }
}

impl std::error::Error for UnknownNumerics {}

impl FromStr for Numerics {
    type Err = UnknownNumerics;

    /// Also accepts `faithful`, an older name of `rounded`.
    fn from_str(name: &str) -> Result<Numerics, UnknownNumerics> {
        if name == "faithful" {
            return Ok(Numerics::Rounded);
        }
        let found = Numerics::ALL.into_iter().find(|numerics| numerics.name() == name);
        found.ok_or_else(|| UnknownNumerics(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numerics_names_round_trip() {
        for numerics in Numerics::ALL {
            assert_eq!(numerics.name().parse(), Ok(numerics));
        }
        assert_eq!("faithful".parse(), Ok(Numerics::Rounded));
        assert!("exact".parse::<Numerics>().is_err());
    }
}
