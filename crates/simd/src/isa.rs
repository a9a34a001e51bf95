use std::fmt;
use std::str::FromStr;

/// An instruction set for which kernels are compiled.
///
/// Kernels take it as an argument, so that tests can run every version that the machine supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// The baseline of the target.
    Portable,
    /// NEON: 128-bit vectors of Arm, with half-precision conversion.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL) with AVX2, FMA and F16C.
    Avx512,
}

/// Error: the name is not an instruction set of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownIsa;

impl Isa {
    /// All instruction sets, from the narrowest to the widest.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// The best instruction set that this machine supports.
    pub fn detect() -> Isa {
        Isa::available().last().unwrap_or(Isa::Portable)
    }

    /// The instruction sets that this machine supports, from the narrowest to the widest.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Whether this machine supports the instruction set.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            Isa::Avx2 => has_avx2(),
            Isa::Avx512 => has_avx512(),
        }
    }

    /// Name for `--isa` and [`FromStr`].
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn has_avx512() -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for UnknownIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown instruction set; expected `portable`, `neon`, `avx2` or `avx512`")
    }
}

impl std::error::Error for UnknownIsa {}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Isa, UnknownIsa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name).ok_or(UnknownIsa)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isa_names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
        assert_eq!("sse".parse::<Isa>(), Err(UnknownIsa));
    }

    #[test]
    fn detected_isa_is_available() {
        assert!(Isa::detect().is_available());
        assert!(Isa::Portable.is_available());
    }
}
