use std::fmt;

/// A series of chips.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Chips of iPhones.
    A,
    /// Chips of Macs and of larger iPads.
    M,
}

/// A chip.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Chip {
    /// The name, `A19 Pro` for instance.
    pub name: &'static str,
    /// The series.
    pub family: Family,
    /// The number in the series.
    pub number: u32,
    /// Devices with this chip, in lower case and without spaces.
    pub devices: &'static [&'static str],
}

/// The first chip of each series that has a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation {
    /// The first chip of iPhones.
    pub a: u32,
    /// The first chip of Macs.
    pub m: u32,
}

/// A text that names neither a chip nor a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownChip {
    name: String,
}

const fn chip(
    name: &'static str,
    family: Family,
    number: u32,
    devices: &'static [&'static str],
) -> Chip {
    Chip { name, family, number, devices }
}

/// Every chip with a Neural Engine that a release with ML Programs runs on and that a study or Apple names.
pub const CHIPS: &[Chip] = &[
    chip("A12", Family::A, 12, &["iphonexs", "iphonexsmax", "iphonexr"]),
    chip("A13", Family::A, 13, &["iphone11", "iphone11pro", "iphone11promax", "iphonese2"]),
    chip("A14", Family::A, 14, &["iphone12", "iphone12mini", "iphone12pro", "iphone12promax"]),
    chip(
        "A15",
        Family::A,
        15,
        &[
            "iphone13",
            "iphone13mini",
            "iphone13pro",
            "iphone13promax",
            "iphone14",
            "iphone14plus",
            "iphonese3",
        ],
    ),
    chip("A16", Family::A, 16, &["iphone14pro", "iphone14promax", "iphone15", "iphone15plus"]),
    chip("A17 Pro", Family::A, 17, &["iphone15pro", "iphone15promax"]),
    chip("A18", Family::A, 18, &["iphone16", "iphone16plus", "iphone16e"]),
    chip("A18 Pro", Family::A, 18, &["iphone16pro", "iphone16promax"]),
    chip("A19", Family::A, 19, &["iphone17"]),
    chip("A19 Pro", Family::A, 19, &["iphone17pro", "iphone17promax", "iphoneair"]),
    chip("M1", Family::M, 1, &[]),
    chip("M2", Family::M, 2, &[]),
    chip("M3", Family::M, 3, &[]),
    chip("M4", Family::M, 4, &[]),
    chip("M5", Family::M, 5, &[]),
    chip("M6", Family::M, 6, &[]),
];

impl Chip {
    /// The chip that a text names: a chip (`m4`, `M4 Max`, `a19 pro`) or a device (`iphone17pro`).
    pub fn parse(text: &str) -> Result<&'static Chip, UnknownChip> {
        let wanted = squeezed(text);
        let wanted = wanted.strip_prefix("apple").unwrap_or(&wanted);
        let named = CHIPS
            .iter()
            .find(|chip| squeezed(chip.name) == wanted || chip.devices.contains(&wanted));
        // The Neural Engine of a larger chip of a Mac is that of the plain one.
        let plain = || {
            let sizes = ["pro", "max", "ultra"];
            let plain = sizes.iter().find_map(|size| wanted.strip_suffix(size))?;
            CHIPS.iter().find(|chip| chip.family == Family::M && squeezed(chip.name) == plain)
        };
        named.or_else(plain).ok_or_else(|| UnknownChip { name: text.to_owned() })
    }

    /// The chip of the study whose plans the forecast repeats.
    pub fn of_study() -> &'static Chip {
        const STUDIED: usize = 13;
        &CHIPS[STUDIED]
    }

    /// Whether a release of iOS, or the macOS of the same year, runs on it. The number is iOS's.
    pub fn runs(&self, ios: u32) -> bool {
        self.family == Family::M || ios < 26 || self.number >= 13
    }
}

impl Generation {
    /// Every chip.
    pub const ALL: Generation = Generation { a: 0, m: 0 };

    /// The chips from these on.
    pub const fn from(a: u32, m: u32) -> Generation {
        Generation { a, m }
    }

    /// Whether a chip is of this generation or a later one.
    pub fn includes(self, chip: &Chip) -> bool {
        match chip.family {
            Family::A => chip.number >= self.a,
            Family::M => chip.number >= self.m,
        }
    }
}

impl fmt::Display for Chip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// `A15 and M3` for instance; `every chip`.
impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Generation::ALL => f.write_str("every chip"),
            Generation { a, m } => write!(f, "A{a} and M{m}"),
        }
    }
}

impl UnknownChip {
    /// Accepted names.
    pub fn hint(&self) -> String {
        let names: Vec<_> = CHIPS.iter().map(|chip| squeezed(chip.name)).collect();
        format!("the chips are {}; iPhones are written `iphone17pro`", names.join(", "))
    }
}

impl fmt::Display for UnknownChip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown chip or device `{}`", self.name)
    }
}

impl std::error::Error for UnknownChip {}

/// A name in lower case, without what separates its parts.
fn squeezed(name: &str) -> String {
    let kept = name.chars().filter(|c| c.is_alphanumeric());
    kept.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_chip_and_device_names() {
        for (text, name) in [
            ("m4", "M4"),
            ("Apple M4 Max", "M4"),
            ("M1 Ultra", "M1"),
            ("a14", "A14"),
            ("A19 Pro", "A19 Pro"),
            ("iPhone 17 Pro", "A19 Pro"),
            ("iphone-15", "A16"),
        ] {
            assert_eq!(Chip::parse(text).map(|chip| chip.name), Ok(name), "{text}");
        }
        for text in ["", "m9", "pro", "a14 max", "iphone3"] {
            assert!(Chip::parse(text).is_err(), "{text}");
        }
        assert_eq!(Chip::of_study().name, "M4");
    }

    #[test]
    fn chip_and_device_names_are_unique() {
        let names = CHIPS.iter().map(|chip| squeezed(chip.name));
        let devices = CHIPS.iter().flat_map(|chip| chip.devices).map(|name| (*name).to_owned());
        let mut all: Vec<_> = names.chain(devices).collect();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn generation_includes_later_chips_of_each_series() {
        let generation = Generation::from(16, 4);
        let included = CHIPS.iter().filter(|chip| generation.includes(chip)).map(|chip| chip.name);
        let expected = ["A16", "A17 Pro", "A18", "A18 Pro", "A19", "A19 Pro", "M4", "M5", "M6"];
        assert_eq!(included.collect::<Vec<_>>(), expected);
        assert!(CHIPS.iter().all(|chip| Generation::ALL.includes(chip) && chip.runs(18)));
        let without_26 = CHIPS.iter().filter(|chip| !chip.runs(26)).map(|chip| chip.name);
        assert_eq!(without_26.collect::<Vec<_>>(), ["A12"]);
    }
}
