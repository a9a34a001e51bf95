use crate::Activation;
use coremill_simd::math::Unary;

/// A function of two numbers. Comparisons and logical functions return 1 or 0. Logical functions treat every
/// number but 0 as true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// The quotient rounded down, as in Python.
    FloorDiv,
    /// The remainder with the sign of the divisor, as in Python.
    Mod,
    /// NaN if an operand is NaN.
    Min,
    /// NaN if an operand is NaN.
    Max,
    Pow,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    And,
    Or,
    Xor,
}

impl Binary {
    /// All functions.
    pub const ALL: [Binary; 18] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::FloorDiv,
        Binary::Mod,
        Binary::Min,
        Binary::Max,
        Binary::Pow,
        Binary::Equal,
        Binary::NotEqual,
        Binary::Less,
        Binary::LessEqual,
        Binary::Greater,
        Binary::GreaterEqual,
        Binary::And,
        Binary::Or,
        Binary::Xor,
    ];
}

/// A step of a [`MapProgram`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The element of an input, by index.
    Input(usize),
    /// A constant.
    Constant(f32),
    /// A function of one value.
    Unary(Unary, MapValue),
    /// An activation of one value.
    Activation(Activation, MapValue),
    /// A function of two values.
    Binary(Binary, MapValue, MapValue),
    /// The product of the first two values plus the third.
    MulAdd(MapValue, MapValue, MapValue),
    /// The second value if the first is not 0, else the third.
    Select(MapValue, MapValue, MapValue),
    /// The value rounded to half precision.
    RoundToFp16(MapValue),
}

/// The result of a step, valid only in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MapValue(pub(super) u32);

impl MapValue {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A chain of elementwise functions. [`map`](super::map()) runs it tile by tile, without storing intermediate
/// values in memory.
///
/// ```
/// use coremill_simd::Isa;
/// use coremill_kernels::Pool;
/// use coremill_kernels::map::{Binary, MapInput, MapProgram, map};
/// use coremill_simd::math::Unary;
///
/// let mut program = MapProgram::new();
/// let (x, bias) = (program.input(0), program.input(1));
/// let sum = program.binary(Binary::Add, x, bias);
/// let result = program.unary(Unary::Relu, sum);
/// program.output(result);
///
/// let rows = MapInput { elements: &[1.0, 2.0, -3.0, -4.0], strides: &[2, 1] };
/// let bias = MapInput { elements: &[1.0, 5.0], strides: &[0, 1] };
/// let mut sums = [0.0; 4];
/// map(Isa::detect(), &Pool::new(1), &program, &[2, 2], &[rows, bias], &mut [&mut sums]);
/// assert_eq!(sums, [2.0, 7.0, 0.0, 1.0]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapProgram {
    pub(super) steps: Vec<Step>,
    pub(super) outputs: Vec<MapValue>,
}

impl MapProgram {
    /// A program without steps.
    pub fn new() -> MapProgram {
        MapProgram::default()
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The output values, in order.
    pub fn outputs(&self) -> &[MapValue] {
        &self.outputs
    }

    /// Number of inputs that the program reads: the highest index plus one.
    pub fn inputs(&self) -> usize {
        let number = |step: &Step| match step {
            Step::Input(number) => number + 1,
            _ => 0,
        };
        self.steps.iter().map(number).max().unwrap_or(0)
    }

    /// Appends a step.
    ///
    /// # Panics
    /// Panics if an operand is not a value of this program.
    pub fn push(&mut self, step: Step) -> MapValue {
        for operand in step.operands().into_iter().flatten() {
            assert!(operand.index() < self.steps.len(), "the operand belongs to another program");
        }
        self.steps.push(step);
        MapValue(u32::try_from(self.steps.len() - 1).expect("programs are short"))
    }

    /// Appends an input; see [`Step::Input`].
    pub fn input(&mut self, number: usize) -> MapValue {
        self.push(Step::Input(number))
    }

    /// Appends a constant.
    pub fn constant(&mut self, value: f32) -> MapValue {
        self.push(Step::Constant(value))
    }

    /// Appends a function of one value.
    pub fn unary(&mut self, function: Unary, value: MapValue) -> MapValue {
        self.push(Step::Unary(function, value))
    }

    /// Appends an activation.
    pub fn activation(&mut self, activation: Activation, value: MapValue) -> MapValue {
        self.push(Step::Activation(activation, value))
    }

    /// Appends a function of two values.
    pub fn binary(&mut self, function: Binary, left: MapValue, right: MapValue) -> MapValue {
        self.push(Step::Binary(function, left, right))
    }

    /// Appends a selection: `yes` if the condition is not 0, else `no`.
    pub fn select(&mut self, condition: MapValue, yes: MapValue, no: MapValue) -> MapValue {
        self.push(Step::Select(condition, yes, no))
    }

    /// Appends a rounding to half precision.
    pub fn round_to_fp16(&mut self, value: MapValue) -> MapValue {
        self.push(Step::RoundToFp16(value))
    }

    /// Makes a value the next output.
    ///
    /// # Panics
    /// Panics if it is not a value of this program.
    pub fn output(&mut self, value: MapValue) {
        assert!(value.index() < self.steps.len(), "the output belongs to another program");
        self.outputs.push(value);
    }

    /// Assigns a scratch tile to the result of each step, reusing tiles so that few are needed; also returns
    /// their number. Inputs and constants have no tile.
    pub(super) fn tiles(&self) -> (Vec<Option<usize>>, usize) {
        let mut last_use = vec![0; self.steps.len()];
        for (at, step) in self.steps.iter().enumerate() {
            for operand in step.operands().into_iter().flatten() {
                last_use[operand.index()] = at;
            }
        }
        for output in &self.outputs {
            last_use[output.index()] = usize::MAX;
        }
        let mut tiles = vec![None; self.steps.len()];
        let mut free = vec![];
        let mut count = 0;
        for (at, step) in self.steps.iter().enumerate() {
            if matches!(step, Step::Input(_) | Step::Constant(_)) {
                continue;
            }
            // A result may overwrite an operand, because each element is read before it is written.
            for operand in step.operands().into_iter().flatten() {
                if last_use[operand.index()] == at
                    && let Some(tile) = tiles[operand.index()]
                    && !free.contains(&tile)
                {
                    free.push(tile);
                }
            }
            tiles[at] = Some(free.pop().unwrap_or_else(|| {
                count += 1;
                count - 1
            }));
        }
        (tiles, count)
    }
}

impl Step {
    pub(super) fn operands(&self) -> [Option<MapValue>; 3] {
        match *self {
            Step::Input(_) | Step::Constant(_) => [None; 3],
            Step::Unary(_, a) | Step::Activation(_, a) | Step::RoundToFp16(a) => {
                [Some(a), None, None]
            }
            Step::Binary(_, a, b) => [Some(a), Some(b), None],
            Step::MulAdd(a, b, c) | Step::Select(a, b, c) => [Some(a), Some(b), Some(c)],
        }
    }
}
