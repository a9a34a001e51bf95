#![no_main]

#[path = "../src/draw.rs"]
mod draw;
#[path = "../src/operators.rs"]
mod operators;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use coremill_pt2::Schema;
use draw::Draw;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

static OPERATORS: OnceLock<Vec<Operator>> = OnceLock::new();
static REACHED: AtomicUsize = AtomicUsize::new(0);
static LOWERED: AtomicUsize = AtomicUsize::new(0);

struct Operator {
    schema: Schema,
    reached: AtomicBool,
    lowered: AtomicBool,
}

fn all() -> &'static [Operator] {
    OPERATORS.get_or_init(|| {
        let operator = |schema| Operator {
            schema,
            reached: AtomicBool::new(false),
            lowered: AtomicBool::new(false),
        };
        operators::operators().into_iter().map(operator).collect()
    })
}

// The first two bytes choose the operator, the others its arguments.
fuzz_target!(|data: &[u8]| {
    let mut draw = Draw::new(data, data.len() as u64);
    let operator = &all()[operators::chosen(&mut draw, all().len())];
    let outcome = operators::call(&operator.schema, &mut draw);
    let first = |flag: &AtomicBool, count: &AtomicUsize| {
        !flag.swap(true, Ordering::Relaxed) && count.fetch_add(1, Ordering::Relaxed) > 0
    };
    let mut news = outcome.is_some() && first(&operator.reached, &REACHED);
    news |= outcome.is_some_and(|ways| ways > 0) && first(&operator.lowered, &LOWERED);
    if news {
        let (reached, lowered) = (REACHED.load(Ordering::Relaxed), LOWERED.load(Ordering::Relaxed));
        let name = &operator.schema.name;
        eprintln!("operators: {reached} of {} reached, {lowered} lowered: {name}", all().len());
    }
});

// Every other input uses the next operator in turn, so that each is called soon and often.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let size = fuzzer_mutate(data, size, max_size);
    if seed % 2 == 0 && size >= 2 {
        let at = NEXT.fetch_add(1, Ordering::Relaxed) % all().len();
        data[..2].copy_from_slice(&(at as u16).to_be_bytes());
    }
    size
});
