//! Configures the sources to use the stand-ins as Core ML.

fn main() {
    println!("cargo:rustc-cfg=coremill_standin");
}
