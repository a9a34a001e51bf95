use std::fmt::Write as _;

use coremill_mil::ops::{Accepts, DefaultValue, OpKind, OpRow, Parameter};

use crate::output::{self, Cell, FAINT, Failure, STRONG, Table, paint};

/// List the operations of MIL, or describe some of them
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  coremill ops\n  coremill ops conv gather")]
pub(crate) struct Args {
    /// Operations to describe [default: list all]
    #[arg(value_name = "OP")]
    names: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.names.is_empty() {
        return output::say(&list());
    }
    let kinds: Result<Vec<_>, _> = args.names.iter().map(|name| find(name)).collect();
    output::say(&kinds?.into_iter().map(describe).collect::<Vec<_>>().join("\n"))
}

fn find(name: &str) -> Result<OpKind, Failure> {
    OpKind::parse(name).map_err(|unknown| Failure::user(unknown.message).hint(Some(unknown.hint)))
}

fn list() -> String {
    let mut families: Vec<(&str, Vec<OpKind>)> = Vec::new();
    for kind in OpKind::ALL {
        match families.iter_mut().find(|(family, _)| *family == kind.family()) {
            Some((_, kinds)) => kinds.push(kind),
            None => families.push((kind.family(), vec![kind])),
        }
    }
    let mut text = String::new();
    for (family, kinds) in families {
        let _ = writeln!(text, "{}", paint(STRONG, family.replace('_', " ")));
        let mut table = Table::new(2);
        for kind in kinds {
            let opsets: Vec<_> = kind.rows().iter().map(|row| row.since.to_string()).collect();
            let parameters = kind.rows().last().map(parameter_names).unwrap_or_default();
            table.row([
                Cell::text(kind.name()),
                Cell::text(opsets.join(" ")).style(FAINT),
                Cell::text(parameters),
            ]);
        }
        text += &table.render();
    }
    text
}

fn parameter_names(row: &OpRow) -> String {
    let name = |parameter: &Parameter| {
        let mark = if parameter.required { "" } else { "?" };
        format!("{}{mark}", parameter.name)
    };
    row.parameters.iter().map(name).collect::<Vec<_>>().join(" ")
}

fn describe(kind: OpKind) -> String {
    let mut text = String::new();
    for row in kind.rows() {
        let since = format!("since {}", row.since);
        let _ = writeln!(text, "{} {}", paint(STRONG, kind.name()), paint(FAINT, since));
        let mut table = Table::new(2);
        for parameter in row.parameters {
            let constant = if parameter.constant { "constant" } else { "" };
            table.row([
                Cell::text(parameter.name),
                Cell::text(accepts(parameter.accepts)),
                Cell::text(constant).style(FAINT),
                Cell::text(default(parameter)).style(FAINT),
            ]);
        }
        text += &table.render();
        if !row.blocks.is_empty() {
            let _ = writeln!(text, "  blocks: {}", row.blocks.join(", "));
        }
    }
    text
}

fn accepts(accepts: Accepts) -> String {
    match accepts {
        Accepts::Tensor { variable, dtypes } => {
            let names: Vec<_> = dtypes.iter().map(|dtype| dtype.name()).collect();
            match variable {
                Some(variable) => format!("{variable}: {}", names.join(" ")),
                None => names.join(" "),
            }
        }
        Accepts::Values => "several values".to_owned(),
        Accepts::List => "a list".to_owned(),
        Accepts::State => "a state".to_owned(),
        Accepts::Any => "a tensor, a list or a dictionary".to_owned(),
    }
}

fn default(parameter: &Parameter) -> String {
    match parameter.default {
        DefaultValue::Absent if parameter.required => "required".to_owned(),
        DefaultValue::Absent => "may be absent".to_owned(),
        DefaultValue::Bool(value) => format!("= {value}"),
        DefaultValue::Int(value) => format!("= {value}"),
        DefaultValue::Float(value) => format!("= {value:?}"),
        DefaultValue::Text(value) => format!("= \"{value}\""),
        DefaultValue::Ints(values) => format!("= {values:?}"),
        DefaultValue::PerSpatialDim { value, times: 1 } => format!("= {value} for each axis"),
        DefaultValue::PerSpatialDim { value, .. } => format!("= {value} at each end of each axis"),
        DefaultValue::FloatByType { fp16, fp32 } => format!("= {fp32:?}; {fp16:?} in fp16"),
        DefaultValue::AllAxes => "= all axes".to_owned(),
        DefaultValue::IndexPerBox => "= 0, 1, 2, …, one for each box".to_owned(),
        DefaultValue::ZeroPerOutput => "= zeros".to_owned(),
    }
}
