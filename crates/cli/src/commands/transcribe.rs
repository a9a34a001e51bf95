use std::path::PathBuf;

use coremill::graph::Precision;
use coremill::llm::{Audio, Segment, SpeechOptions, Task, TranscribeOptions, Transcriber};
use serde::Serialize;

use super::loaded::DeviceArg;
use crate::output::{self, Failure};
use crate::progress::Progress;

/// Transcribe speech
///
/// The model is a directory that `coremill llm` wrote, or a folder with `config.json` and safetensors: Whisper. The audio is a WAV
/// file with integers or floats; channels are mixed, and other rates than the model's are converted. The text consists of the
/// model's most likely tokens. Audio that is longer than a window of 30 s is read with timestamps, and the next window starts after the last
/// whole segment.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill transcribe whisper-tiny speech.wav\n  coremill transcribe whisper-tiny speech.wav --language de --task translate\n  coremill transcribe whisper-tiny speech.wav --timestamps --json"
)]
pub(crate) struct Args {
    /// A directory that `coremill llm` wrote, or a folder with `config.json` and safetensors
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// A WAV file
    #[arg(value_name = "AUDIO")]
    audio: PathBuf,
    /// Code of the language, such as `en` [default: the most likely in the first window]
    #[arg(long, value_name = "CODE")]
    language: Option<String>,
    /// The text to write
    #[arg(long, value_enum, default_value_t = TaskArg::Transcribe)]
    task: TaskArg,
    /// Print each segment with its start and end
    #[arg(long)]
    timestamps: bool,
    /// Compute with weight files in fp32 instead of the precision of converted models
    #[arg(long)]
    fp32: bool,
    /// Device to compute on
    #[arg(long, value_enum, default_value_t = DeviceArg::Host)]
    device: DeviceArg,
    /// Number of threads on the host; 0 uses all processors
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::threads)]
    threads: usize,
    /// Print text and segments as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum TaskArg {
    /// The text in the audio's language
    Transcribe,
    /// The text in English
    Translate,
}

/// Text of audio. The JSON form is stable: fields are only added while `format_version` stays.
#[derive(Serialize)]
struct Report {
    format_version: u32,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<String>,
    seconds: f64,
    segments: Vec<SegmentReport>,
}

#[derive(Serialize)]
struct SegmentReport {
    start: f64,
    end: f64,
    text: String,
    tokens: Vec<u32>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let failure = |error: coremill::llm::Error| super::failure(&error);
    let progress = Progress::start(format!("loading {}", args.model.display()));
    let audio = Audio::read(&args.audio).map_err(failure)?;
    let mut options = SpeechOptions::default();
    if args.fp32 {
        options = options.precision(Precision::Fp32);
    }
    let opened = Transcriber::open(&args.model, args.device.into(), args.threads, &options);
    let mut transcriber = opened.map_err(failure)?;
    let audio = audio.resampled(transcriber.features().rate());
    let total = audio.seconds();
    let mut asked = TranscribeOptions::default();
    asked.language.clone_from(&args.language);
    asked.timestamps = args.timestamps;
    asked.task = match args.task {
        TaskArg::Transcribe => Task::Transcribe,
        TaskArg::Translate => Task::Translate,
    };
    progress.stage("transcribing");
    let mut watch = |segment: &Segment| {
        progress.stage(format!("transcribed {:.0} of {total:.0} s", segment.end.min(total)));
    };
    let found = transcriber.transcribe(&audio, &asked, &mut watch).map_err(failure)?;
    drop(progress);
    if args.json {
        let segments = found.segments.into_iter();
        return output::print_json(&Report {
            format_version: 1,
            text: found.text,
            language: found.language,
            seconds: found.seconds,
            segments: segments
                .map(|Segment { start, end, text, tokens, .. }| {
                    let text = text.trim().to_owned();
                    SegmentReport { start, end, text, tokens }
                })
                .collect(),
        });
    }
    if !args.timestamps {
        return output::print(&(found.text + "\n"));
    }
    let line = |segment: &Segment| {
        let [start, end] = [segment.start, segment.end].map(clock);
        format!("[{start} - {end}] {}\n", segment.text.trim())
    };
    output::print(&found.segments.iter().map(line).collect::<String>())
}

/// A time in minutes, seconds and hundredths.
fn clock(seconds: f64) -> String {
    let hundredths = (seconds * 100.0).round() as u64;
    format!("{:02}:{:02}.{:02}", hundredths / 6000, hundredths / 100 % 60, hundredths % 100)
}
