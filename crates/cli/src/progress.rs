//! What is being done, for whoever waits longer than half a second at a terminal.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that takes less is done before anybody could read what it is.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often the sign of life moves.
const TICK: Duration = Duration::from_millis(100);

/// A line on standard error that says what is being done. It is gone when this is dropped.
pub(crate) struct Progress {
    stages: Option<Sender<String>>,
    painter: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins with a stage. Nothing is shown unless standard error is a terminal.
    pub(crate) fn start(stage: impl Into<String>) -> Progress {
        let stage = stage.into();
        if !std::io::stderr().is_terminal() {
            return Progress { stages: None, painter: None };
        }
        let (sender, stages) = mpsc::channel::<String>();
        let painter = std::thread::spawn(move || {
            let (mut stage, mut bar): (_, Option<ProgressBar>) = (stage, None);
            let start = Instant::now();
            loop {
                let wait =
                    if bar.is_some() { TICK } else { PATIENCE.saturating_sub(start.elapsed()) };
                match stages.recv_timeout(wait) {
                    Ok(next) => stage = next,
                    Err(RecvTimeoutError::Timeout) => {
                        bar.get_or_insert_with(spinner).set_message(stage.clone());
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if let Some(bar) = &bar {
                    bar.set_message(stage.clone());
                    bar.tick();
                }
            }
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
        });
        Progress { stages: Some(sender), painter: Some(painter) }
    }

    /// Says what is being done now.
    pub(crate) fn stage(&self, stage: impl Into<String>) {
        if let Some(stages) = &self.stages {
            // The other end lives as long as this one.
            let _ = stages.send(stage.into());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stages = None;
        if let Some(painter) = self.painter.take() {
            let _ = painter.join();
        }
    }
}

fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}
