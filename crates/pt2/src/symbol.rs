//! Symbolic sizes: expressions of symbols in sympy's notation.
//!
//! Archives use two notations, and one parser reads both: sympy's `srepr`, with a call for every term
//! (`Mul(Integer(2), Symbol('s0', positive=True, integer=True))`), and plain text (`2*s0 + 1`), which torch
//! 2.5, `executorch.exir.save` and the keys of range constraints use.

mod evaluate;
mod parse;

use std::collections::HashMap;
use std::fmt;

pub use evaluate::Number;

/// A symbol of a program: an index into [`Symbols`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SymbolId(pub(crate) u32);

impl SymbolId {
    /// Index in [`Symbols`], for side tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Properties of a symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// torch's name: `s77` for the size of an input, `u0` for a value known only at run time.
    pub name: String,
    /// The value at export.
    pub hint: Option<i64>,
    /// The smallest value; `None` if unbounded.
    pub minimum: Option<i64>,
    /// The largest value; `None` if unbounded.
    pub maximum: Option<i64>,
}

/// The symbols of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    symbols: Vec<Symbol>,
    by_name: HashMap<String, SymbolId>,
}

impl Symbols {
    /// Returns a symbol.
    pub fn get(&self, id: SymbolId) -> &Symbol {
        &self.symbols[id.0 as usize]
    }

    /// Returns the symbol with this name.
    pub fn find(&self, name: &str) -> Option<SymbolId> {
        self.by_name.get(name).copied()
    }

    /// All symbols, in the order of their first use.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Symbol> {
        self.symbols.iter()
    }

    pub(crate) fn get_mut(&mut self, id: SymbolId) -> &mut Symbol {
        &mut self.symbols[id.0 as usize]
    }

    /// Sets the maximum of unbounded symbols, and returns their names.
    pub(crate) fn bound(&mut self, most: i64) -> Vec<String> {
        let is_open = |symbol: &&mut Symbol| {
            symbol.maximum.is_none_or(|maximum| maximum > i64::from(i32::MAX))
        };
        let mut names = Vec::new();
        for symbol in self.symbols.iter_mut().filter(is_open) {
            symbol.maximum = Some(most.max(symbol.minimum.unwrap_or(0)));
            names.push(symbol.name.clone());
        }
        names
    }

    pub(crate) fn intern(&mut self, name: &str) -> SymbolId {
        if let Some(id) = self.find(name) {
            return id;
        }
        let id = SymbolId(self.symbols.len() as u32);
        let name = name.to_owned();
        self.symbols.push(Symbol { name: name.clone(), hint: None, minimum: None, maximum: None });
        self.by_name.insert(name, id);
        id
    }
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// An integer.
    Integer(i64),
    /// A fraction in lowest terms, as written by sympy.
    Rational(i64, i64),
    /// A float.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A symbol.
    Symbol(SymbolId),
    /// A function of other expressions.
    Call(Function, Vec<Expression>),
}

/// Declares the functions with their names in sympy and torch.
macro_rules! functions {
    ($($(#[$doc:meta])* $variant:ident = $name:literal $(| $alias:literal)*,)*) => {
        /// A function in an [`Expression`].
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Function {
            $($(#[$doc])* $variant,)*
            /// An unknown function; only expressions that contain it are affected.
            Other(String),
        }

        impl Function {
            /// Name in `srepr`.
            pub fn name(&self) -> &str {
                match self { $(Function::$variant => $name,)* Function::Other(name) => name }
            }

            pub(crate) fn from_name(name: &str) -> Function {
                match name {
                    $($name $(| $alias)* => Function::$variant,)*
                    other => Function::Other(other.to_owned()),
                }
            }
        }
    };
}

functions! {
    /// The sum of all arguments.
    Add = "Add",
    /// The product of all arguments.
    Mul = "Mul",
    /// The first to the power of the second.
    Pow = "Pow" | "PowByNatural" | "FloatPow",
    /// The quotient, rounded down.
    FloorDiv = "FloorDiv",
    /// The quotient of an exact division.
    CleanDiv = "CleanDiv",
    /// The quotient, rounded up.
    CeilDiv = "CeilDiv",
    /// The quotient of integers as a float.
    IntTrueDiv = "IntTrueDiv",
    /// The quotient of floats.
    FloatTrueDiv = "FloatTrueDiv",
    /// The remainder of non-negative numbers.
    Mod = "Mod",
    /// The remainder with the sign of the divisor.
    PythonMod = "PythonMod",
    /// `(first // second) % third`.
    ModularIndexing = "ModularIndexing",
    /// The maximum.
    Max = "Max",
    /// The minimum.
    Min = "Min",
    /// The absolute value.
    Abs = "Abs",
    /// Rounded down.
    Floor = "floor" | "FloorToInt",
    /// Rounded up.
    Ceiling = "ceiling" | "CeilToInt",
    /// Rounded towards zero.
    Truncate = "TruncToInt" | "TruncToFloat",
    /// Rounded to the nearest, ties to even.
    Round = "RoundToInt",
    /// Rounded to a number of decimal places.
    RoundDecimal = "RoundDecimal",
    /// As a float.
    ToFloat = "ToFloat",
    /// The second argument if the first is true, else the third.
    Where = "Where",
    /// The first expression whose condition is true.
    Piecewise = "Piecewise",
    /// An expression and its condition.
    Pair = "ExprCondPair" | "Tuple",
    /// The first argument times two to the power of the second.
    ShiftLeft = "LShift",
    /// The first argument divided by two to the power of the second, rounded down.
    ShiftRight = "RShift",
    /// Whether both are equal.
    Equal = "Equality" | "Eq",
    /// Whether both differ.
    NotEqual = "Unequality" | "Ne",
    /// Whether the first is less.
    Less = "StrictLessThan" | "Lt",
    /// Whether the first is less or equal.
    LessOrEqual = "LessThan" | "Le",
    /// Whether the first is greater.
    Greater = "StrictGreaterThan" | "Gt",
    /// Whether the first is greater or equal.
    GreaterOrEqual = "GreaterThan" | "Ge",
    /// Whether all are true.
    And = "And",
    /// Whether at least one is true.
    Or = "Or",
    /// Whether the argument is false.
    Not = "Not",
    /// The square root as a float.
    SquareRoot = "OpaqueUnaryFn_sqrt",
    /// Marks an expression that must not be simplified.
    Identity = "Identity",
}

impl Expression {
    /// Parses either notation, and adds new symbols to `symbols`.
    pub(crate) fn parse(text: &str, symbols: &mut Symbols) -> Result<Expression, crate::Error> {
        parse::parse(text, symbols)
    }

    /// Evaluates the expression for the symbol values of `value`. Returns `None` if a symbol has no value, if
    /// a function is unknown, or if the result is out of range.
    pub fn evaluate(&self, value: &dyn Fn(SymbolId) -> Option<i64>) -> Option<Number> {
        evaluate::evaluate(self, value)
    }

    /// The symbols in the expression, each once, in order of occurrence.
    pub fn symbols(&self) -> Vec<SymbolId> {
        let mut found = Vec::new();
        self.visit(&mut |expression| {
            if let Expression::Symbol(id) = expression
                && !found.contains(id)
            {
                found.push(*id);
            }
        });
        found
    }

    fn visit(&self, look: &mut dyn FnMut(&Expression)) {
        look(self);
        if let Expression::Call(_, arguments) = self {
            for argument in arguments {
                argument.visit(look);
            }
        }
    }

    /// Formats the expression as calls, with the names of the symbols.
    pub fn display<'a>(&'a self, symbols: &'a Symbols) -> impl fmt::Display + 'a {
        Shown { expression: self, symbols }
    }
}

struct Shown<'a> {
    expression: &'a Expression,
    symbols: &'a Symbols,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.expression {
            Expression::Integer(value) => write!(f, "{value}"),
            Expression::Rational(above, below) => write!(f, "{above}/{below}"),
            Expression::Float(value) => write!(f, "{value:?}"),
            Expression::Bool(value) => write!(f, "{value}"),
            Expression::Symbol(id) => f.write_str(&self.symbols.get(*id).name),
            Expression::Call(function, arguments) => {
                write!(f, "{}(", function.name())?;
                for (index, expression) in arguments.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{}", Shown { expression, symbols: self.symbols })?;
                }
                f.write_str(")")
            }
        }
    }
}
