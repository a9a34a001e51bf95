//! Compiles the stand-ins, and configures the sources to use them as Core ML.

use std::path::Path;
use std::process::Command;

fn run(command: &mut Command) {
    let status = command.status();
    assert!(status.is_ok_and(|status| status.success()), "{command:?} failed");
}

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo says where");
    let (object, library) =
        (Path::new(&out).join("standin.o"), Path::new(&out).join("libstandin.a"));
    let flags = Command::new("gnustep-config").arg("--objc-flags").output();
    let flags = flags.expect("gnustep-config runs; install libgnustep-base-dev");
    let flags = String::from_utf8(flags.stdout).expect("flags are text");
    let mut compiler = Command::new("gcc");
    // Except those that write other files.
    compiler.args(flags.split_whitespace().filter(|flag| !matches!(*flag, "-MMD" | "-MP")));
    run(compiler.args(["-std=gnu11", "-Werror", "-c", "standin.m", "-o"]).arg(&object));
    run(Command::new("ar").arg("crs").arg(&library).arg(&object));
    println!("cargo:rerun-if-changed=standin.m");
    println!("cargo:rustc-cfg=coremill_standin");
    // Before GNUstep, whose own block functions do nothing.
    println!("cargo:rustc-link-lib=BlocksRuntime");
    println!("cargo:rustc-link-search=native={out}");
    println!("cargo:rustc-link-lib=static:+whole-archive=standin");
}
