//! `coremill run --batch`: independent inputs, of which several run at a time.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use coremill_session::{Session, inputs};

use super::inputs::{constant_inputs, step_inputs};
use super::outputs::{self, OutputSummary};
use super::report::{Batch, Report};
use super::{Args, Times, files};
use crate::commands::loaded::LoadedFunction;
use crate::inputs::{Arrays, is_standard, read_step};
use crate::output::{self, Failure, OutputPath};

/// A file of inputs, and the file for its outputs.
struct Job {
    inputs: PathBuf,
    output: Option<OutputPath>,
}

/// Duration and outputs of a job.
type JobResult = (Duration, Vec<OutputSummary>);

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let jobs = jobs(args)?;
    let paths = jobs.iter().map(|job| &job.inputs).chain([&args.model]).chain(&args.data);
    crate::commands::check_output_paths(paths, jobs.iter().filter_map(|job| job.output.as_ref()))?;
    let start = Instant::now();
    let mut options = super::options(args);
    let available = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let count = available.min(jobs.len());
    // Sessions of one thread each never wait for one another.
    options.threads = available / count;
    options.limits.bytes /= count;
    let loaded = super::load(args, &options)?;
    let sessions = (0..count).map(|_| loaded.session()).collect::<Result<Vec<_>, _>>()?;
    let load = start.elapsed();
    if let Some(directory) = &args.output {
        let directory = directory.as_directory()?;
        std::fs::create_dir_all(directory).map_err(|error| {
            Failure::user(format_args!("{}: cannot be created: {error}", directory.display()))
        })?;
    }
    let start = Instant::now();
    let results = perform(args, &loaded, sessions, &jobs)?;
    let took = start.elapsed().as_secs_f64();
    let batch = Batch {
        inputs: jobs.iter().map(|job| job.inputs.display().to_string()).collect(),
        sessions: count,
        milliseconds: took * 1e3,
        runs_per_second: jobs.len() as f64 / took,
    };
    let first = results.first().map_or(Duration::ZERO, |(first, _)| *first);
    let times = Times { load, first, repeats: Vec::new() };
    let outputs = results.into_iter().map(|(_, outputs)| outputs).collect();
    output::say(&Report::of_batch(args, &loaded, &times, outputs, batch).text(args)?)
}

/// Lists the files. A directory selects its `.npz` files in the order of their names.
fn jobs(args: &Args) -> Result<Vec<Job>, Failure> {
    let mut files = Vec::new();
    for path in &args.inputs {
        if is_standard(path) {
            return Err(Failure::user("`--batch` reads files, but `-` is standard input"));
        }
        if path.is_dir() {
            files.extend(within(path)?);
        } else {
            files.push(path.clone());
        }
    }
    let target = |inputs: &Path| {
        let directory = args.output.as_ref().map(OutputPath::as_directory).transpose()?;
        let name = inputs.file_name();
        Ok(directory
            .zip(name)
            .map(|(directory, name)| OutputPath::from(directory.join(name).with_extension("npz"))))
    };
    let mut names = HashSet::new();
    let job = |inputs: PathBuf| {
        let output = target(&inputs)?;
        if let Some(output) = &output
            && !names.insert(output.to_path_buf())
        {
            let message = format!("{} would be written twice", output.display());
            return Err(Failure::user(message).hint(Some("give each input file a different name")));
        }
        Ok(Job { inputs, output })
    };
    files.into_iter().map(job).collect()
}

fn within(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let refused = |error: std::io::Error| {
        Failure::user(format_args!("{}: cannot be read: {error}", directory.display()))
    };
    let entries = std::fs::read_dir(directory).map_err(refused)?;
    let paths = entries.map(|entry| Ok(entry.map_err(refused)?.path()));
    let mut paths = paths.collect::<Result<Vec<_>, Failure>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "npz"));
    paths.sort();
    if paths.is_empty() {
        let message = format!("{}: contains no `.npz` file", directory.display());
        return Err(Failure::user(message));
    }
    Ok(paths)
}

/// Runs all jobs. Each session takes the next job, reads its inputs, and writes its outputs, so that memory
/// does not grow with the number of jobs. Returns the error of the first job that fails.
fn perform(
    args: &Args,
    loaded: &LoadedFunction,
    sessions: Vec<Box<dyn Session>>,
    jobs: &[Job],
) -> Result<Vec<JobResult>, Failure> {
    let Some(first) = sessions.first() else { return Ok(Vec::new()) };
    let constant = constant_inputs(args, &**first)?;
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let mut results: Vec<_> = std::thread::scope(|scope| {
        for mut session in sessions {
            let (sender, constant, next, has_failed) =
                (sender.clone(), &constant, &next, &has_failed);
            scope.spawn(move || {
                while !has_failed.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(at) else { break };
                    let result = perform_one(args, loaded, &mut *session, constant, at, job);
                    has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    if sender.send((at, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        receiver.iter().collect()
    });
    // Jobs start in their order, so that all before one that fails have ended.
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn perform_one(
    args: &Args,
    loaded: &LoadedFunction,
    session: &mut dyn Session,
    constant: &Arrays,
    at: usize,
    job: &Job,
) -> Result<JobResult, Failure> {
    let start = Instant::now();
    let given = read_step(&job.inputs, args.positional, session.inputs())?;
    let place = Some(&*job.inputs);
    let mut given = step_inputs(args, loaded, session, constant, at, place, given)?;
    coremill::feedback::feed(&loaded.fed, session.inputs(), None, &mut given);
    let run = |session: &mut dyn Session| {
        session.reset()?;
        session.run(&inputs(&given))
    };
    let outputs = run(session).map_err(|error| {
        Failure::user(format_args!("{}: {error}", job.inputs.display())).hint(error.hint())
    })?;
    let outputs = [outputs];
    if let Some(path) = &job.output {
        files::write_npz(path, &files::named(outputs::entries(&outputs, args.positional)))?;
    }
    let [outputs] = &outputs;
    Ok((start.elapsed(), outputs::summarize(outputs)))
}
