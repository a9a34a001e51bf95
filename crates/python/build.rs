//! Linker arguments of a library that Python loads.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The interpreter that loads the library provides the symbols.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "macos") {
        println!("cargo::rustc-cdylib-link-arg=-undefined");
        println!("cargo::rustc-cdylib-link-arg=dynamic_lookup");
    }
}
