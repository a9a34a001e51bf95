//! Has the sources take the stand-ins for Core ML.

fn main() {
    println!("cargo:rustc-cfg=coremill_standin");
}
