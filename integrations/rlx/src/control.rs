//! Operations that hold graphs: branches, loops, scans and their gradients, and functions of the caller.

use std::cell::RefCell;

use coremill_graph::{DType, Error, Tensor, nn, ops};
use rlx_ir::{Graph, Op};

use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    Ok(Some(match &site.node.op {
        Op::If { then_branch, else_branch } => {
            let condition = truth(site.arg(0)?);
            let given = &site.args[1..];
            let fault = Fault::default();
            let branch = |body: &Graph| {
                fault.or(site.inline(body, given), || vec![site.args[0]])[..1].to_vec()
            };
            let result = site.graph.cond(condition, || branch(then_branch), || branch(else_branch));
            fault.given(first(site, &result)?)?
        }
        Op::While { cond, body, max_iterations } => {
            let fault = Fault::default();
            let mut start = vec![site.graph.int(0)];
            start.extend(&site.args);
            let result = site.graph.while_loop(
                &start,
                |carried| {
                    let goes_on = fault.or(site.inline(cond, &carried[1..]), || vec![carried[0]]);
                    let goes_on = truth(goes_on[0]);
                    match max_iterations {
                        Some(most) => {
                            let most = i32::try_from(*most).unwrap_or(i32::MAX);
                            goes_on.logical_and(carried[0].less(most))
                        }
                        None => goes_on,
                    }
                },
                |carried| {
                    let next = fault.or(site.inline(body, &carried[1..]), || carried[1..].to_vec());
                    [vec![carried[0] + 1], next].concat()
                },
            );
            match result.get(1) {
                Some(&result) => fault.given(result)?,
                None => return site.refuse("carries no values"),
            }
        }
        Op::Scan { body, length, save_trajectory, num_bcast, num_xs, num_checkpoints } => {
            let shared = *num_bcast as usize;
            if site.args.len() < 1 + shared + *num_xs as usize {
                return site.refuse(format!("has too few operands: {}", site.args.len()));
            }
            let loops = Loop {
                site,
                body,
                shared: &site.args[1..1 + shared],
                sequences: &site.args[1 + shared..],
                length: *length as usize,
            };
            if *save_trajectory {
                let all = loops.trajectory(site.args[0])?;
                chosen(site, all, *length as usize, *num_checkpoints as usize)
            } else {
                loops.last(site.args[0])?
            }
        }
        Op::ScanBackward {
            body_vjp,
            length,
            save_trajectory,
            num_xs,
            num_checkpoints,
            forward_body,
        } => {
            let walk = Walk {
                site,
                body: body_vjp,
                forward: forward_body.as_deref(),
                length: *length as usize,
                every_step: *save_trajectory,
                sequences: *num_xs as usize,
                kept: *num_checkpoints as usize,
            };
            walk.back(None)?.0
        }
        Op::ScanBackwardXs {
            body_vjp,
            length,
            save_trajectory,
            num_xs,
            xs_idx,
            num_checkpoints,
            forward_body,
        } => {
            let walk = Walk {
                site,
                body: body_vjp,
                forward: forward_body.as_deref(),
                length: *length as usize,
                every_step: *save_trajectory,
                sequences: *num_xs as usize,
                kept: *num_checkpoints as usize,
            };
            reversed(walk.back(Some(*xs_idx as usize))?.1)
        }
        Op::CustomFn { fwd_body, .. } => first(site, &site.inline(fwd_body, &site.args)?)?,
        _ => return Ok(None),
    }))
}

fn first<'g>(site: &NodeContext<'_, 'g>, results: &[Tensor<'g>]) -> Result<Tensor<'g>, Error> {
    results.first().copied().map_or_else(|| site.refuse("holds a graph without outputs"), Ok)
}

/// Converts a value to a boolean scalar, which `cond` and `while_loop` need.
fn truth(x: Tensor<'_>) -> Tensor<'_> {
    let x = if x.dtype() == DType::Bool { x } else { x.not_equal(0.0) };
    match x.rank() {
        0 => x,
        _ => x.view([1]).squeeze(ops::Squeeze::new().axes([0])),
    }
}

fn reversed(x: Tensor<'_>) -> Tensor<'_> {
    x.reverse(ops::Reverse::new().axes([0]))
}

/// The first error inside a nested block. The closure that builds the block must return values even then.
#[derive(Default)]
struct Fault(RefCell<Option<Error>>);

impl Fault {
    fn or<'g>(
        &self,
        result: Result<Vec<Tensor<'g>>, Error>,
        otherwise: impl FnOnce() -> Vec<Tensor<'g>>,
    ) -> Vec<Tensor<'g>> {
        match result {
            Ok(values) if !values.is_empty() => values,
            Ok(_) => otherwise(),
            Err(error) => {
                self.0.borrow_mut().get_or_insert(error);
                otherwise()
            }
        }
    }

    fn given<T>(&self, value: T) -> Result<T, Error> {
        self.0.borrow_mut().take().map_or(Ok(value), Err)
    }
}

/// A loop with a fixed number of steps. Its body takes the carried value, the shared operands and one element
/// of each sequence.
struct Loop<'a, 'g> {
    site: &'a NodeContext<'a, 'g>,
    body: &'a Graph,
    shared: &'a [Tensor<'g>],
    sequences: &'a [Tensor<'g>],
    length: usize,
}

impl<'g> Loop<'_, 'g> {
    fn next(&self, fault: &Fault, carried: Tensor<'g>, elements: &[Tensor<'g>]) -> Tensor<'g> {
        let given = [&[carried], self.shared, elements].concat();
        fault.or(self.site.inline(self.body, &given), || vec![carried])[0]
    }

    fn last(&self, start: Tensor<'g>) -> Result<Tensor<'g>, Error> {
        let fault = Fault::default();
        let last = nn::repeat(self.site.graph, self.length, &[start], |step, carried| {
            let elements: Vec<_> = self.sequences.iter().map(|&x| element(x, step)).collect();
            vec![self.next(&fault, carried[0], &elements)]
        });
        fault.given(last[0])
    }

    /// The carried value after each step, stacked along axis 0.
    fn trajectory(&self, start: Tensor<'g>) -> Result<Tensor<'g>, Error> {
        let fault = Fault::default();
        // The step numbers are the first sequence, because `nn::scan` needs at least one.
        let steps: Vec<i32> = (0..self.length as i32).collect();
        let mut sequences = vec![self.site.graph.ints([steps.len()], &steps)];
        sequences.extend(self.sequences);
        let (_, all) = nn::scan(self.site.graph, &[start], &sequences, |carried, elements| {
            let next = self.next(&fault, carried[0], &elements[1..]);
            (vec![next], next)
        });
        fault.given(all)
    }
}

/// Row `step` of a sequence, without axis 0.
fn element<'g>(x: Tensor<'g>, step: Tensor<'g>) -> Tensor<'g> {
    let row = x.gather(step.expand_dims([0]), ops::Gather::new().axis(0));
    row.squeeze(ops::Squeeze::new().axes([0]))
}

/// The rows of a trajectory that `rlx` keeps as checkpoints; all rows if `kept` is 0.
fn chosen<'g>(
    site: &NodeContext<'_, 'g>,
    all: Tensor<'g>,
    length: usize,
    kept: usize,
) -> Tensor<'g> {
    if kept == 0 || kept >= length {
        return all;
    }
    let rows: Vec<i32> =
        (1..=kept).map(|at| ((at * length).div_ceil(kept).max(1) - 1) as i32).collect();
    all.gather(site.graph.ints([kept], &rows), ops::Gather::new().axis(0))
}

/// The backward pass of a scan. The operands are the initial value, the trajectory, the gradient of the
/// result and the sequences.
struct Walk<'a, 'g> {
    site: &'a NodeContext<'a, 'g>,
    body: &'a Graph,
    forward: Option<&'a Graph>,
    length: usize,
    /// Whether the incoming gradient has one row for each step. Otherwise it belongs to the last step.
    every_step: bool,
    sequences: usize,
    /// The number of rows of the trajectory that were kept; 0 if all were.
    kept: usize,
}

impl<'g> Walk<'_, 'g> {
    /// The gradient of the initial value, and the gradient of sequence `wanted` with the last step first.
    fn back(&self, wanted: Option<usize>) -> Result<(Tensor<'g>, Tensor<'g>), Error> {
        let site = self.site;
        let [start, trajectory, slope] = site.operands()?;
        if site.args.len() < 3 + self.sequences || self.length == 0 {
            return site.refuse(format!("has too few operands: {}", site.args.len()));
        }
        let sequences = &site.args[3..3 + self.sequences];
        let trajectory = match self.forward {
            Some(body) if self.kept != 0 && self.kept < self.length => {
                let again = Loop { site, body, shared: &[], sequences, length: self.length };
                again.trajectory(start)?
            }
            _ => trajectory,
        };
        // The carried value before each step.
        let before = match self.length {
            1 => start.unsqueeze(0),
            length => {
                site.joined([start.unsqueeze(0), trajectory.narrow(0, ..length as i32 - 1)], 0)
            }
        };
        let mut backwards = vec![reversed(before)];
        if self.every_step {
            backwards.push(reversed(slope));
        }
        backwards.extend(sequences.iter().map(|&x| reversed(x)));
        let own = backwards.len() - sequences.len();
        let first = if self.every_step { start * 0.0 } else { slope };
        let fault = Fault::default();
        let (last, rows) = nn::scan(site.graph, &[first], &backwards, |carried, elements| {
            let slope = if self.every_step { carried[0] + elements[1] } else { carried[0] };
            let given = [&elements[..1], &elements[own..]].concat();
            let found = site.inline_named(self.body, &given, ("d_output", slope));
            let found = fault.or(found, || vec![slope]);
            let row = wanted.map_or(Some(&found[0]), |at| found.get(at + 1)).copied();
            let row = row.unwrap_or_else(|| {
                let missing = site
                    .refuse("requires the gradient of a sequence that the body does not compute");
                fault.or(missing, || vec![slope])[0]
            });
            (vec![found[0]], row)
        });
        fault.given((last[0], rows))
    }
}
