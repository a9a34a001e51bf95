//! What a library that Python loads needs of the linker.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The interpreter that loads it has the symbols.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "macos") {
        println!("cargo::rustc-cdylib-link-arg=-undefined");
        println!("cargo::rustc-cdylib-link-arg=dynamic_lookup");
    }
}
