/// SplitMix64: pseudorandom numbers that are identical for the same seed on every machine.
///
/// ```
/// use coremill_tensor::SplitMix64;
///
/// let mut random = SplitMix64::new(7);
/// assert_eq!([random.next_u64(), random.next_u64()], [0, 1].map(|at| SplitMix64::nth(7, at)));
/// ```
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

/// The odd number next to 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl SplitMix64 {
    /// Returns a generator with a seed.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The number at an index of the sequence for a seed.
    pub fn nth(seed: u64, index: u64) -> u64 {
        let state = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP));
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        let number = SplitMix64::nth(self.0, 0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers equal the output of the reference, Sebastiano Vigna's `splitmix64.c`.
    #[test]
    fn splitmix64_matches_reference() {
        let mut random = SplitMix64::new(1_234_567);
        let numbers = [(); 5].map(|()| random.next_u64());
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(numbers, expected);
    }
}
