//! Progress display for operations longer than half a second.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time before progress is shown.
const PATIENCE: Duration = Duration::from_millis(500);
/// Interval of the animation.
const TICK: Duration = Duration::from_millis(100);

/// A progress line on standard error. It is removed on drop.
pub(crate) struct Progress {
    stages: Option<Sender<String>>,
    painter: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts with a stage. Nothing is shown unless standard error is a terminal.
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

    /// Sets the current stage.
    pub(crate) fn stage(&self, stage: impl Into<String>) {
        if let Some(stages) = &self.stages {
            // The receiver lives as long as the sender.
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
