use coremill_mil::ir::Opset;

/// The opset of a release, such as `ios18`, or of `macos15`, `watchos11` or `tvos18`, which were
/// released with it.
///
/// ```
/// use coremill::convert::parse_target;
/// use coremill::mil::ir::Opset;
///
/// assert_eq!(parse_target("iOS18"), Some(Opset::Ios18));
/// assert_eq!(parse_target("macos15"), Some(Opset::Ios18));
/// assert_eq!(parse_target("ios14"), None);
/// ```
pub fn parse_target(text: &str) -> Option<Opset> {
    Opset::from_release(text)
}
