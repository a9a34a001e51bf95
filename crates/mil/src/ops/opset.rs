use std::fmt;

/// The set of operations, with their versions, that a function may use.
///
/// It is named after the iOS release that introduced it. It is always a field of the function, never global.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Opset {
    /// `CoreML5`: iOS 15, macOS 12.
    Ios15,
    /// `CoreML6`: iOS 16, macOS 13.
    Ios16,
    /// `CoreML7`: iOS 17, macOS 14.
    Ios17,
    /// `CoreML8`: iOS 18, macOS 15.
    Ios18,
    /// `CoreML9`: iOS 26, macOS 26.
    Ios26,
}

impl Opset {
    /// Every opset of ML Programs, oldest first.
    pub const ALL: [Opset; 5] =
        [Opset::Ios15, Opset::Ios16, Opset::Ios17, Opset::Ios18, Opset::Ios26];

    /// Name in the model file, for instance `CoreML8`.
    pub const fn name(self) -> &'static str {
        match self {
            Opset::Ios15 => "CoreML5",
            Opset::Ios16 => "CoreML6",
            Opset::Ios17 => "CoreML7",
            Opset::Ios18 => "CoreML8",
            Opset::Ios26 => "CoreML9",
        }
    }

    /// Tag in MIL text, for instance `ios18`.
    pub const fn tag(self) -> &'static str {
        match self {
            Opset::Ios15 => "ios15",
            Opset::Ios16 => "ios16",
            Opset::Ios17 => "ios17",
            Opset::Ios18 => "ios18",
            Opset::Ios26 => "ios26",
        }
    }

    /// Returns the opset with this name in the model file.
    pub fn from_name(name: &str) -> Option<Opset> {
        Opset::ALL.into_iter().find(|opset| opset.name() == name)
    }

    /// Returns the opset with this tag in MIL text.
    pub fn from_tag(tag: &str) -> Option<Opset> {
        Opset::ALL.into_iter().find(|opset| opset.tag() == tag)
    }

    /// The lowest specification version for models with functions in this opset.
    pub const fn specification_version(self) -> i32 {
        match self {
            Opset::Ios15 => 6,
            Opset::Ios16 => 7,
            Opset::Ios17 => 8,
            Opset::Ios18 => 9,
            Opset::Ios26 => 10,
        }
    }

    /// Returns the opset that a specification version introduced; `None` for versions before ML Programs and
    /// for unknown versions.
    pub fn from_specification_version(version: i32) -> Option<Opset> {
        Opset::ALL.into_iter().find(|opset| opset.specification_version() == version)
    }

    /// Returns the opset of a release: `ios18`, or the releases of the same year, `macos15`, `watchos11`,
    /// `tvos18`.
    pub fn from_release(text: &str) -> Option<Opset> {
        let is = |system: &str, version: &str| {
            let major = version.split('.').next().unwrap_or(version);
            text.get(..system.len()).is_some_and(|start| start.eq_ignore_ascii_case(system))
                && [version, major].contains(&&text[system.len()..])
        };
        Opset::ALL
            .into_iter()
            .find(|opset| opset.availability().iter().any(|(system, version)| is(system, version)))
    }

    /// The first release of each system that supports it, as `(system, version)`.
    pub const fn availability(self) -> [(&'static str, &'static str); 4] {
        match self {
            Opset::Ios15 => {
                [("iOS", "15.0"), ("macOS", "12.0"), ("watchOS", "8.0"), ("tvOS", "15.0")]
            }
            Opset::Ios16 => {
                [("iOS", "16.0"), ("macOS", "13.0"), ("watchOS", "9.0"), ("tvOS", "16.0")]
            }
            Opset::Ios17 => {
                [("iOS", "17.0"), ("macOS", "14.0"), ("watchOS", "10.0"), ("tvOS", "17.0")]
            }
            Opset::Ios18 => {
                [("iOS", "18.0"), ("macOS", "15.0"), ("watchOS", "11.0"), ("tvOS", "18.0")]
            }
            Opset::Ios26 => {
                [("iOS", "26.0"), ("macOS", "26.0"), ("watchOS", "26.0"), ("tvOS", "26.0")]
            }
        }
    }
}

impl fmt::Display for Opset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Opset::Ios15 => "iOS15",
            Opset::Ios16 => "iOS16",
            Opset::Ios17 => "iOS17",
            Opset::Ios18 => "iOS18",
            Opset::Ios26 => "iOS26",
        })
    }
}
