use std::path::{Path, PathBuf};

use coremill_report::{Change, ChangeKind, Changes, Report, changes};

use crate::output::{self, Cell, ERROR, FAINT, Failure, GOOD, OutputPath, STRONG, Table, paint};

/// Maximum number of changes listed per function.
const MAX_LISTED: usize = 200;

/// Show the changes between two models: interface, operations, arguments, weights
///
/// Operations are matched by name, then by kind and operands.
#[derive(clap::Args)]
#[command(
    after_help = "Exits with 0 even if the models differ; with --exit-code, exits with 1 if they do.\n\nExamples:\n  coremill diff Old.mlpackage New.mlpackage\n  coremill diff Model.mlpackage Smaller.mlpackage --html changes.html"
)]
pub(crate) struct Args {
    /// The old model
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The new model
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Exit with 1 if the models differ
    #[arg(long)]
    exit_code: bool,
    /// Write an HTML report with both models and the changes
    #[arg(long, value_name = "FILE.html")]
    html: Option<OutputPath>,
    /// Print the changes as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.before, &args.after], &args.html)?;
    let (before, after) = (super::open(&args.before)?, super::open(&args.after)?);
    let mut found = changes(&before, &after);
    let stages = [stages(&args.before)?, stages(&args.after)?];
    if stages[0] != stages[1] {
        let [before, after] = stages;
        found.facts.push(("stages".to_owned(), before, after));
    }
    if let Some(path) = &args.html {
        let names = [&args.before, &args.after].map(|path| path.display().to_string());
        let mut page = Report::new(super::page::title_of_two([&args.before, &args.after]));
        page.add_model(&names[0], &before, None);
        page.add_model(&names[1], &after, None);
        page.data.changes = Some(found.clone());
        super::page::write(path, &page)?;
    }
    if args.json {
        output::print_json(&found)?;
    } else {
        output::say(&text(args, &found))?;
    }
    match args.exit_code && !found.is_empty() {
        true => Err(Failure::already_reported()),
        false => Ok(()),
    }
}

/// Names of a pipeline's stages; empty for other models. Comparisons of programs do not see where a pipeline is cut.
fn stages(path: &Path) -> Result<String, Failure> {
    if path.as_os_str() == "-" {
        return Ok(String::new());
    }
    let pipeline = coremill::open_pipeline(path).map_err(|error| super::failure(&error))?;
    let names = pipeline.map(|pipeline| {
        let names = (0..pipeline.stages.len()).map(|index| pipeline.stage_name(index));
        names.collect::<Vec<_>>().join(", ")
    });
    Ok(names.unwrap_or_default())
}

fn text(args: &Args, found: &Changes) -> String {
    let arrow = format!("{} → {}", args.before.display(), args.after.display());
    let mut lines = format!("{}\n", paint(STRONG, arrow));
    if found.is_empty() {
        return lines + "  no differences\n";
    }
    let or_none = |text: &str| if text.is_empty() { "–".to_owned() } else { text.to_owned() };
    let mut facts = Table::new(2);
    for (label, before, after) in &found.facts {
        let change = format!("{} → {}", or_none(before), or_none(after));
        facts.row([Cell::text(label).style(FAINT), Cell::text(change)]);
    }
    lines += &facts.render();
    for function in &found.functions {
        let count = |count: Option<usize>| {
            count.map_or_else(|| "absent".to_owned(), |count| format!("{count} operations"))
        };
        let [before, after] = function.operations.map(count);
        let title = paint(STRONG, format!("function {}", function.name));
        lines += &format!("{title}  {before} → {after}, {} unchanged\n", function.same);
        let mut table = Table::new(2);
        for change in function.changes.iter().take(MAX_LISTED) {
            let (sign, style) = match change.kind {
                ChangeKind::Added => ("+", GOOD),
                ChangeKind::Removed => ("-", ERROR),
                ChangeKind::Changed => ("~", STRONG),
            };
            table.row([
                Cell::text(sign).style(style),
                Cell::text(&change.what),
                Cell::name(&change.name).style(STRONG),
                Cell::text(differences(change)),
            ]);
        }
        lines += &table.render();
        if !function.moved.is_empty() {
            lines += &format!("  {}\n", paint(STRONG, "moved to another device (forecast for M4)"));
        }
        let mut moves = Table::new(4);
        for moved in function.moved.iter().take(MAX_LISTED) {
            let devices = format!("{} → {}", moved.before.name(), moved.after.name());
            moves.row([
                Cell::text(&moved.what),
                Cell::name(&moved.name).style(STRONG),
                Cell::text(devices),
                Cell::text(moved.reason.as_deref().unwrap_or_default()).style(FAINT),
            ]);
        }
        lines += &moves.render();
        let rest = function.changes.len().saturating_sub(MAX_LISTED);
        if rest > 0 {
            lines += &paint(FAINT, format!("  and {rest} more; --json and --html show all\n"));
        }
    }
    lines
}

fn differences(change: &Change) -> String {
    let texts = change.differences.iter();
    let told = |text: &str| if text.is_empty() { "–".to_owned() } else { text.to_owned() };
    let texts: Vec<_> =
        texts.map(|(label, x, y)| format!("{label}: {} → {}", told(x), told(y))).collect();
    texts.join("; ")
}
