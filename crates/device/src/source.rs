/// A public study of devices, or a report of one defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// Plans, costs and arithmetic of M4 and M6.
    MicroarchitectureStudy,
    /// Compiler tables of all chips; M1, M2 Pro and M5 measured.
    AneGuide,
    /// Language models on M5 Pro.
    LanguageModelsOnAne,
    /// Language models on iPhones.
    CoreMlLlm,
    /// Conformance tests of WebNN on macOS.
    RustNn,
    /// Limits of the private interface on M3 Pro.
    Ironmill,
    /// Models on the private interface of M2 and M4 Max.
    Orion,
    /// Throughput on the private interface of M3 Pro, M4 and M5.
    AneBenchmarks,
    /// Compute units compared on M4 Pro and M5 Max.
    ComputePlacement,
    /// A guide from the time of neural networks, A12 to A15.
    NeuralEngineNotes,
    /// Issues of coremltools.
    Coremltools,
    /// Issues of ExecuTorch.
    ExecuTorch,
    /// Issues of products: ultralytics, FluidAudio, soniqo, ANEMLL.
    Products,
    /// Apple's documentation.
    Apple,
    /// Workarounds in another converter, found on a Mac.
    RlxCoreml,
    /// The arithmetic of binary16, which holds on every device.
    Ieee754,
    /// Reports in public issue threads whose addresses were not kept.
    Reports,
}

/// A source as people read it.
#[derive(Debug)]
pub struct SourceRow {
    /// The source.
    pub source: Source,
    /// The repository, or the name.
    pub name: &'static str,
    /// Chips and systems that it is about.
    pub about: &'static str,
    /// Access to the device: through Core ML or private interfaces.
    pub access: &'static str,
    /// When it was read, or when it was made if that is known.
    pub date: &'static str,
}

const fn row(
    source: Source,
    name: &'static str,
    about: &'static str,
    access: &'static str,
    date: &'static str,
) -> SourceRow {
    SourceRow { source, name, about, access, date }
}

/// Every source.
pub const SOURCES: &[SourceRow] = &[
    row(
        Source::MicroarchitectureStudy,
        "751K/Apple-Neural-Engine-Microarchitecture-Study-M6",
        "M4, M6; macOS 27.0.1",
        "Core ML for placement, both for numbers",
        "2026-10",
    ),
    row(
        Source::AneGuide,
        "sbryngelson/ane-guide, ANEForge",
        "M1, M2 Pro and M5 measured; other chips from compiler tables",
        "private",
        "read 2026-11-25",
    ),
    row(
        Source::LanguageModelsOnAne,
        "cadamcat/llms-on-apple-neural-engine",
        "M5 Pro; macOS 27.0",
        "Core ML and Core AI",
        "read 2026-11-25",
    ),
    row(
        Source::CoreMlLlm,
        "john-rocky/CoreML-LLM",
        "iPhone 17 Pro (A19 Pro), A18, M series; iOS 26",
        "Core ML",
        "read 2026-11-25",
    ),
    row(
        Source::RustNn,
        "rebeckerspecialties/rustnn",
        "M4, macOS 27; hosted arm64, macOS 26.6.2",
        "Core ML",
        "read 2026-11-25",
    ),
    row(Source::Ironmill, "jafreck/ironmill", "M3 Pro; macOS 15.4", "private", "read 2026-11-25"),
    row(Source::Orion, "mechramc/Orion", "M4 Max, M2", "private", "read 2026-11-25"),
    row(Source::AneBenchmarks, "maderix/ANE", "M3 Pro, M4, M5", "private", "read 2026-11-25"),
    row(
        Source::ComputePlacement,
        "erwinzhang7/coreml-compute-placement",
        "M4 Pro, M5 Max",
        "Core ML",
        "read 2026-11-25",
    ),
    row(
        Source::NeuralEngineNotes,
        "hollance/neural-engine",
        "A12 to A15",
        "Core ML, neural networks",
        "2019 to 2022",
    ),
    row(
        Source::Coremltools,
        "issues of apple/coremltools",
        "varies by issue",
        "Core ML",
        "read 2026-11-25",
    ),
    row(
        Source::ExecuTorch,
        "issues of pytorch/executorch",
        "varies by issue",
        "Core ML",
        "read 2026-11-25",
    ),
    row(
        Source::Products,
        "issues of ultralytics, FluidAudio, soniqo and ANEMLL",
        "varies by issue",
        "Core ML",
        "read 2026-11-25",
    ),
    row(Source::Apple, "Apple's documentation of Core ML", "every chip", "Core ML", "2026"),
    row(
        Source::RlxCoreml,
        "MIT-RLX/rlx (rlx-coreml 0.2.19)",
        "Macs, chips not stated; macOS 26.6.2",
        "Core ML",
        "read 2026-11-26",
    ),
    row(Source::Ieee754, "IEEE 754, binary16", "every chip", "none: arithmetic", "2019"),
    row(
        Source::Reports,
        "public issue threads whose URLs were not recorded",
        "not stated",
        "Core ML",
        "read 2026-11",
    ),
];

impl Source {
    /// Further notes.
    pub fn row(self) -> &'static SourceRow {
        &SOURCES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_rows_are_indexed_by_source() {
        for (index, row) in SOURCES.iter().enumerate() {
            assert_eq!(row.source as usize, index, "{}", row.name);
            assert_eq!(row.source.row().name, row.name);
        }
    }
}
