//! The judge: a long-running Python process, because importing coremltools takes long.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

/// The process and its pipes.
pub(super) struct Judge {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

#[derive(Serialize)]
struct Question<'a> {
    name: &'a str,
    package: &'a Path,
    precision: &'a str,
}

/// The judge's result for a package.
#[derive(Deserialize)]
pub(super) struct Verdict {
    pub(super) operations: u64,
    pub(super) error: Option<f64>,
    /// Reason why the error may be larger than that of other packages.
    pub(super) excuse: Option<String>,
    pub(super) faults: Vec<String>,
}

impl Judge {
    pub(super) fn start(
        root: &Path,
        python: &Path,
        coremill: &Path,
        exports: &Path,
    ) -> Result<Judge, String> {
        let mut command = Command::new(python);
        command.current_dir(root).env(super::BINARY_VARIABLE, coremill);
        command.args(["-m", "oracle.checkers.conversion"]).arg(exports);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| format!("cannot start the judge: {error}"))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => {
                Ok(Judge { child, input, output: BufReader::new(output) })
            }
            _ => Err("the judge has no pipes".to_owned()),
        }
    }

    pub(super) fn ask(
        &mut self,
        name: &str,
        package: &Path,
        precision: &str,
    ) -> Result<Verdict, String> {
        let question = serde_json::to_string(&Question { name, package, precision })
            .map_err(|error| error.to_string())?;
        let mut answer = String::new();
        writeln!(self.input, "{question}")
            .and_then(|()| self.input.flush())
            .and_then(|()| self.output.read_line(&mut answer))
            .map_err(|error| format!("the judge does not answer: {error}"))?;
        serde_json::from_str(&answer).map_err(|error| {
            format!("the judge's answer for `{name}` cannot be read: {error}: `{}`", answer.trim())
        })
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        // The process ends with its input; do not wait if it hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
