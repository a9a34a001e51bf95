//! Runs methods on commands from standard input, for tests that compare with ExecuTorch.
//!
//! `load PROGRAM [DATA…]` loads a program, `operators` lists its kernels, `method NAME` loads a method,
//! `run FOLDER VALUE…` executes it. A value is `none`, `int:1`, `bool:true`, `double:0.5`, or a tensor as
//! `TYPE:SIZES:ORDER:FILE` with commas between sizes. Answers are `ok` and values, whose files are in the
//! folder, or `error` and a message.

use std::fs;
use std::io::{self, BufRead, Write};

use coremill_runtime::{LoadOptions, Method, Program, ScalarType, Tensor, Value, operators};
use coremill_tensor::Buffer;

type Failure = Box<dyn std::error::Error>;

#[derive(Default)]
struct Session {
    program: Option<Program>,
    method: Option<Method>,
}

fn main() -> io::Result<()> {
    let mut session = Session::default();
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split('\t').collect();
        match session.answer(&words) {
            Ok(answer) => writeln!(output, "ok\t{}", answer.join("\t"))?,
            Err(error) => writeln!(output, "error\t{}", error.to_string().replace('\n', " "))?,
        }
        output.flush()?;
    }
    Ok(())
}

impl Session {
    fn answer(&mut self, words: &[&str]) -> Result<Vec<String>, Failure> {
        match words {
            ["operators"] => {
                Ok(operators().map(|(name, signature)| format!("{name} {signature}")).collect())
            }
            ["load", path, data @ ..] => {
                self.method = None;
                let data = data.iter().map(Into::into).collect();
                let program =
                    Program::load_with(path, LoadOptions { data, ..LoadOptions::default() })?;
                let methods = program.methods().map(str::to_owned).collect();
                self.program = Some(program);
                Ok(methods)
            }
            ["method", name] => {
                let program = self.program.as_ref().ok_or("no program is loaded")?;
                self.method = Some(program.method(name)?);
                Ok(Vec::new())
            }
            ["run", folder, values @ ..] => {
                let values =
                    values.iter().map(|value| read(value)).collect::<Result<Vec<_>, _>>()?;
                let method = self.method.as_mut().ok_or("no method is loaded")?;
                let outputs = method.execute(&values)?;
                let written = outputs.iter().enumerate();
                written.map(|(index, value)| write(value, &format!("{folder}/{index}"))).collect()
            }
            _ => Err(format!("unknown request {words:?}").into()),
        }
    }
}

fn numbers<T: std::str::FromStr>(list: &str) -> Result<Vec<T>, T::Err> {
    list.split(',').filter(|number| !number.is_empty()).map(str::parse).collect()
}

fn read(value: &str) -> Result<Value, Failure> {
    let parts: Vec<&str> = value.splitn(4, ':').collect();
    Ok(match parts[..] {
        ["none"] => Value::None,
        ["int", value] => Value::Int(value.parse()?),
        ["bool", value] => Value::Bool(value.parse()?),
        ["double", value] => Value::Double(value.parse()?),
        [name, sizes, order, file] => {
            let found = ScalarType::ALL.iter().find(|scalar| format!("{scalar:?}") == name);
            let scalar_type = *found.ok_or_else(|| format!("unknown element type {name}"))?;
            let data = Buffer::from(fs::read(file)?);
            Value::Tensor(Tensor::with_order(scalar_type, numbers(sizes)?, numbers(order)?, data)?)
        }
        _ => return Err(format!("cannot parse the value {value}").into()),
    })
}

fn write(value: &Value, file: &str) -> Result<String, Failure> {
    let join = |list: &[usize]| list.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    Ok(match value {
        Value::Tensor(tensor) => {
            fs::write(file, tensor.data().as_bytes())?;
            let order: Vec<usize> =
                tensor.dim_order().iter().map(|axis| usize::from(*axis)).collect();
            format!("{:?}:{}:{}:{file}", tensor.scalar_type(), join(tensor.sizes()), join(&order))
        }
        Value::None => "none".to_owned(),
        Value::Int(value) => format!("int:{value}"),
        Value::Bool(value) => format!("bool:{value}"),
        Value::Double(value) => format!("double:{value}"),
        other => return Err(format!("values of this kind cannot be written: {other:?}").into()),
    })
}
