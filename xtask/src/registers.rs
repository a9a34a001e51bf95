//! `cargo xtask registers`: innermost loops of products and convolutions keep their sums in registers.
//!
//! The kernels are compiled to assembly as in a release. The check fails if a loop with many multiply-adds accesses vectors on the
//! stack, moves vectors between registers, or has vectors that are too narrow, and if an operation on vectors is called instead of inlined.
//! `cargo xtask apple --only link` checks the library for iOS.

use std::fs;
use std::path::Path;

use crate::workspace::{cargo, describe, execute, root, target_directory};

/// Innermost loops of some kernels.
#[derive(Clone, Copy)]
struct Guard {
    name: &'static str,
    /// Parts of the mangled names of the functions.
    parts: [&'static str; 2],
    /// Start of the mnemonic that adds products to a sum.
    multiply_add: &'static str,
    /// Part of the operands or of the mnemonic that denotes a vector of the full width.
    full_width: &'static str,
    /// Number of multiply-adds in the largest loop.
    sums: usize,
}

const X86: [Guard; 5] = [
    Guard {
        name: "products, AVX-512",
        parts: ["9SizedTile", "10run_avx512"],
        multiply_add: "vfmadd",
        full_width: "%zmm",
        sums: 24,
    },
    Guard {
        name: "products, AVX2",
        parts: ["9SizedTile", "8run_avx2"],
        multiply_add: "vfmadd",
        full_width: "%ymm",
        sums: 12,
    },
    Guard {
        name: "products of integers, AVX-512",
        parts: ["7integer7product4Task", "15run_avx512_vnni"],
        multiply_add: "vpdpbusd",
        full_width: "%zmm",
        sums: 24,
    },
    Guard {
        name: "depthwise convolutions, AVX-512",
        parts: ["9depthwise3Run", "10run_avx512"],
        multiply_add: "vfmadd",
        full_width: "%zmm",
        sums: 49,
    },
    Guard {
        name: "depthwise convolutions, AVX2",
        parts: ["9depthwise3Run", "8run_avx2"],
        multiply_add: "vfmadd",
        full_width: "%ymm",
        sums: 49,
    },
];

const ARM: [Guard; 2] = [
    Guard {
        name: "products, NEON",
        parts: ["9SizedTile", "8run_neon"],
        multiply_add: "fmla",
        full_width: "4s",
        sums: 24,
    },
    Guard {
        name: "depthwise convolutions, NEON",
        parts: ["9depthwise3Run", "8run_neon"],
        multiply_add: "fmla",
        full_width: "4s",
        sums: 49,
    },
];

/// Minimum number of multiply-adds of a checked loop. Smaller loops have registers to spare.
const LEAST: usize = 12;

/// Compiles the kernels for this machine, and checks their loops.
pub(crate) fn run() -> Result<(), String> {
    let guards = match std::env::consts::ARCH {
        "x86_64" => &X86[..],
        "aarch64" => &ARM[..],
        other => return Err(format!("expected x86_64 or aarch64, found {other}")),
    };
    let root = root();
    let folder = target_directory(&root).join("registers");
    fs::create_dir_all(&folder).map_err(|error| describe("make", &folder, &error))?;
    let path = folder.join("kernels.s");
    let mut compile = cargo(&root);
    compile.args(["rustc", "--quiet", "--release", "--package", "coremill-kernels", "--lib", "--"]);
    compile.args(["-Csymbol-mangling-version=v0", &format!("--emit=asm={}", path.display())]);
    execute(&mut compile, "compiling the kernels to assembly")?;
    check(&path, guards)
}

/// Checks the loops in the assembly of a library for Apple's systems.
pub(crate) fn check_apple(assembly: &Path) -> Result<(), String> {
    check(assembly, &ARM)
}

fn check(path: &Path, guards: &[Guard]) -> Result<(), String> {
    let assembly = fs::read_to_string(path).map_err(|error| describe("read", path, &error))?;
    let functions = functions(&assembly);
    for guard in guards {
        let loops = guard.check(&functions)?;
        println!("ok      {}: {loops} loops, up to {} multiply-adds", guard.name, guard.sums);
    }
    check_calls(&functions)?;
    println!("ok      no vector operation is called");
    Ok(())
}

/// Checks that each operation on vectors is inlined. A call, such as from a closure in `array::map`, passes vectors through memory.
fn check_calls(functions: &[Function]) -> Result<(), String> {
    match functions.iter().find(|function| function.name.contains("9core_arch")) {
        None => Ok(()),
        Some(Function { name, .. }) => Err(format!(
            "the vector operation `{name}` is called; expected it to be inlined, in a loop rather than a closure"
        )),
    }
}

impl Guard {
    /// Checks all loops with many multiply-adds, and returns their number.
    fn check(&self, functions: &[Function]) -> Result<usize, String> {
        let (mut count, mut most) = (0, 0);
        for function in functions {
            if !self.parts.iter().all(|part| function.name.contains(part)) {
                continue;
            }
            for instructions in function.innermost_loops() {
                let is_sum = |text: &&str| text.starts_with(self.multiply_add);
                let sums = instructions.iter().copied().filter(is_sum).count();
                if sums < LEAST {
                    continue;
                }
                (count, most) = (count + 1, most.max(sums));
                let narrow = |text: &str| is_sum(&text) && !text.contains(self.full_width);
                let wrong = |text: &str| uses_stack(text) || is_move(text) || narrow(text);
                if let Some(text) = instructions.iter().find(|text| wrong(text)) {
                    return Err(format!(
                        "{}: a loop with {sums} multiply-adds has the instruction `{text}`; expected sums in registers of the full \
                         width ({})",
                        self.name, function.name
                    ));
                }
            }
        }
        match most == self.sums {
            true => Ok(count),
            false => Err(format!(
                "{}: expected a loop with {} multiply-adds, found {most} in the largest loop",
                self.name, self.sums
            )),
        }
    }
}

/// A function: its labels and instructions.
struct Function<'a> {
    name: &'a str,
    lines: Vec<Line<'a>>,
}

enum Line<'a> {
    Label(&'a str),
    Instruction(&'a str),
}

/// The functions of an assembly file for ELF or Mach-O.
fn functions(assembly: &str) -> Vec<Function<'_>> {
    let mut functions: Vec<Function> = Vec::new();
    for text in assembly.lines() {
        if let Some(instruction) = text.strip_prefix('\t') {
            let is_code = instruction.starts_with(|letter: char| letter.is_ascii_lowercase());
            if let (true, Some(function)) = (is_code, functions.last_mut()) {
                function.lines.push(Line::Instruction(instruction));
            }
        } else if let Some((label, _)) = text.split_once(':') {
            let is_local = label.starts_with(['.', 'L', 'l']);
            match functions.last_mut() {
                Some(function) if is_local => function.lines.push(Line::Label(label)),
                _ if is_local => {}
                _ => functions.push(Function { name: label, lines: Vec::new() }),
            }
        }
    }
    functions
}

impl<'a> Function<'a> {
    /// The instructions of loops that contain no other loop. A loop is a range that ends with a jump to its start.
    fn innermost_loops(&self) -> Vec<Vec<&'a str>> {
        let mut loops = Vec::new();
        for (end, line) in self.lines.iter().enumerate() {
            let Line::Instruction(text) = line else { continue };
            let Some(target) = jump_target(text) else { continue };
            let is_target = |line: &Line| matches!(line, Line::Label(label) if *label == target);
            if let Some(start) = self.lines[..end].iter().position(is_target) {
                loops.push((start, end));
            }
        }
        let contains = |outer: (usize, usize), inner: (usize, usize)| {
            outer != inner && outer.0 <= inner.0 && inner.1 <= outer.1
        };
        let innermost =
            loops.iter().filter(|one| !loops.iter().any(|other| contains(**one, *other)));
        let instructions = |&(start, end): &(usize, usize)| {
            let lines = self.lines[start..=end].iter().filter_map(|line| match line {
                Line::Instruction(text) => Some(*text),
                Line::Label(_) => None,
            });
            lines.collect()
        };
        innermost.map(instructions).collect()
    }
}

/// The label to which an instruction may jump.
fn jump_target(text: &str) -> Option<&str> {
    let (mnemonic, operands) = text.split_once('\t')?;
    let arm = matches!(mnemonic, "b" | "cbz" | "cbnz" | "tbz" | "tbnz");
    let jumps = mnemonic.starts_with('j') || mnemonic.starts_with("b.") || arm;
    jumps.then(|| operands.rsplit([',', ' ']).next()).flatten()
}

/// Whether an instruction reads or writes a vector on the stack.
fn uses_stack(text: &str) -> bool {
    let Some((_, operands)) = text.split_once('\t') else { return false };
    (operands.contains("(%rsp") && operands.contains("mm"))
        || (operands.contains("[sp") && operands.starts_with(['q', 'd', 'v']))
}

/// Whether an instruction copies a vector from one register to another.
fn is_move(text: &str) -> bool {
    let Some((mnemonic, operands)) = text.split_once('\t') else { return false };
    let x86 = mnemonic.starts_with("vmov") && !operands.contains('(');
    x86 || mnemonic == "mov.16b"
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: &str = "\tvfmadd231ps\t%zmm9, %zmm6, %zmm20\n";

    /// A loop with some instructions, inside another loop that uses the stack.
    fn tile(sums: usize, more: &str) -> String {
        let before = "_RNv9SizedTileKj8_Kj3_10run_avx512:\n.Lfunc_begin0:\n\t.cfi_startproc\n.LBB0_1:\n\
                      \tvmovups\t32(%rsp), %zmm1\n.LBB0_2:\n";
        let after =
            "\tincq\t%rsi\n\tcmpq\t%rsi, %r9\n\tjne\t.LBB0_2\n\tjmp\t.LBB0_1\n.Lfunc_end0:\n";
        format!("{before}{}{more}{after}", SUM.repeat(sums))
    }

    #[test]
    fn accepts_loops_with_sums_in_registers() {
        assert_eq!(X86[0].check(&functions(&tile(24, "\tvmovups\t(%rdx), %zmm6\n"))), Ok(1));
        let arm = "\tldr\ts2, [x15, x14, lsl #2]\n\tfmla.4s\tv12, v1, v2[0]\n".repeat(24);
        let arm = format!(
            "__RNv9SizedTile8run_neon:\nLBB3_1:\n{arm}\tcmp\tx8, x14\n\tb.ne\tLBB3_1\n\tldr\tq1, [sp]\n"
        );
        assert_eq!(ARM[0].check(&functions(&arm)), Ok(1));
        let spilled = arm.replace("\tcmp", "\tstr\tq3, [sp, #16]\n\tcmp");
        assert!(
            ARM[0]
                .check(&functions(&spilled))
                .is_err_and(|error| error.contains("`str\tq3, [sp, #16]`"))
        );
    }

    #[test]
    fn rejects_spills_moves_and_narrow_vectors() {
        for more in [
            "\tvmovups\t%zmm0, 352(%rsp)\n",
            "\tvaddps\t-64(%rsp), %zmm0, %zmm0\n",
            "\tvmovaps\t%zmm15, %zmm10\n",
            "\tvfmadd231ps\t%ymm9, %ymm6, %ymm20\n",
        ] {
            let error = X86[0].check(&functions(&tile(24, more))).expect_err("the loop is wrong");
            assert!(error.contains(more.trim()), "{error}");
        }
        let called = format!("_RNvNtNtCs1_4core9core_arch3x866_mm512:\n{}", tile(1, ""));
        assert!(check_calls(&functions(&called)).is_err_and(|error| error.contains("_mm512")));
        assert_eq!(check_calls(&functions(&tile(1, ""))), Ok(()));
        // A loop that was not unrolled.
        let error = X86[0].check(&functions(&tile(3, ""))).expect_err("there is no large loop");
        assert!(error.contains("expected a loop with 24 multiply-adds, found 0"), "{error}");
    }
}
