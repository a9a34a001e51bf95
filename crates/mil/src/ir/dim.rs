//! Dimensions, and integer expressions for unknown dimensions.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// One dimension of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A fixed size.
    Known(u64),
    /// A size that the program does not specify, written `?`. Files have only fixed and unknown sizes.
    Unknown,
    /// A size that inference computed as an expression of symbols; files store it as `?`.
    Symbolic(Expr),
}

impl Dim {
    /// The size if it is fixed.
    pub fn known(&self) -> Option<u64> {
        match self {
            Dim::Known(extent) => Some(*extent),
            Dim::Unknown | Dim::Symbolic(_) => None,
        }
    }

    /// The size as an expression; `None` if it is unknown.
    pub fn expr(&self) -> Option<Expr> {
        match self {
            Dim::Known(extent) => Some(Expr::from(i64::try_from(*extent).ok()?)),
            Dim::Unknown => None,
            Dim::Symbolic(expr) => Some(expr.clone()),
        }
    }

    /// Whether both could be equal. Unknown and symbolic sizes could have any value.
    pub fn may_equal(&self, other: &Dim) -> bool {
        match (self.known(), other.known()) {
            (Some(left), Some(right)) => left == right,
            _ => true,
        }
    }
}

impl From<u64> for Dim {
    fn from(extent: u64) -> Dim {
        Dim::Known(extent)
    }
}

impl From<Expr> for Dim {
    /// Converts a constant expression to a fixed size, or to an unknown size if it is negative.
    fn from(expr: Expr) -> Dim {
        match expr.constant() {
            Some(value) => u64::try_from(value).map_or(Dim::Unknown, Dim::Known),
            None => Dim::Symbolic(expr),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(extent) => write!(f, "{extent}"),
            Dim::Unknown => f.write_str("?"),
            Dim::Symbolic(expr) => write!(f, "{expr}"),
        }
    }
}

/// An unknown integer: a dimension of an input, or a dimension that depends on data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(pub u32);

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// An integer expression over [`Symbol`]s in normal form: a sum of products of atoms.
///
/// Expressions that are equal as sums of products compare equal. Arithmetic returns `None` on overflow.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Expr(Form);

/// Representation of an expression. Most expressions are constants, which need no allocation.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Form {
    Constant(i64),
    /// An expression with at least one term.
    Sum(Arc<Sum>),
}

type Terms = BTreeMap<Vec<Atom>, i64>;

static NO_TERMS: Terms = BTreeMap::new();

/// `constant + Σ coefficient · Π atoms`. Coefficients are not zero, and the atoms of each product are sorted.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Sum {
    constant: i64,
    terms: Terms,
    /// Total number of atoms, counting each occurrence of a nested atom. Expressions share their parts, so a
    /// few operations could otherwise build an expression that takes too long to traverse.
    atoms: usize,
}

/// A factor of a product.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Atom {
    Symbol(Symbol),
    FloorDiv(Expr, Expr),
    Mod(Expr, Expr),
    Max(Expr, Expr),
    Min(Expr, Expr),
}

/// Maximum number of products in an expression; larger expressions become unknown. Without the limit, a
/// hostile program could multiply sums until they fill memory.
const MAX_TERMS: usize = 64;

/// Maximum degree and nesting depth; larger expressions become unknown, for the same reason.
const MAX_DEPTH: usize = 16;

/// Maximum number of atoms including nested ones; larger expressions become unknown, for the same reason.
const MAX_ATOMS: usize = 1024;

impl Ord for Form {
    /// A constant is ordered like a sum without terms.
    fn cmp(&self, other: &Form) -> Ordering {
        match (self, other) {
            (Form::Constant(left), Form::Constant(right)) => left.cmp(right),
            (Form::Constant(left), Form::Sum(right)) => {
                left.cmp(&right.constant).then(Ordering::Less)
            }
            (Form::Sum(left), Form::Constant(right)) => {
                left.constant.cmp(right).then(Ordering::Greater)
            }
            (Form::Sum(left), Form::Sum(right)) => left.cmp(right),
        }
    }
}

impl PartialOrd for Form {
    fn partial_cmp(&self, other: &Form) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Expr {
    /// The value if the expression has no symbols.
    pub fn constant(&self) -> Option<i64> {
        match &self.0 {
            Form::Constant(value) => Some(*value),
            Form::Sum(_) => None,
        }
    }

    /// The constant part of the sum.
    fn offset(&self) -> i64 {
        match &self.0 {
            Form::Constant(value) => *value,
            Form::Sum(sum) => sum.constant,
        }
    }

    fn terms(&self) -> &Terms {
        match &self.0 {
            Form::Constant(_) => &NO_TERMS,
            Form::Sum(sum) => &sum.terms,
        }
    }

    /// The number of atoms, including nested ones.
    fn atoms(&self) -> usize {
        match &self.0 {
            Form::Constant(_) => 0,
            Form::Sum(sum) => sum.atoms,
        }
    }

    /// The products with their coefficients; the constant is an empty product.
    fn all_terms(&self) -> impl Iterator<Item = (&[Atom], i64)> {
        let constant = (self.offset() != 0).then_some((&[][..], self.offset()));
        let terms = self.terms().iter().map(|(product, &c)| (product.as_slice(), c));
        constant.into_iter().chain(terms)
    }

    /// The sum; `None` on overflow.
    pub fn add(&self, other: &Expr) -> Option<Expr> {
        if let (Form::Constant(left), Form::Constant(right)) = (&self.0, &other.0) {
            return left.checked_add(*right).map(Expr::from);
        }
        let constant = self.offset().checked_add(other.offset())?;
        let mut sum = Sum { constant, terms: self.terms().clone(), atoms: 0 };
        for (product, coefficient) in other.terms() {
            sum.add_term(product.clone(), *coefficient)?;
        }
        sum.finish()
    }

    /// The difference; `None` on overflow.
    pub fn sub(&self, other: &Expr) -> Option<Expr> {
        self.add(&other.mul(&Expr::from(-1))?)
    }

    /// The product; `None` on overflow.
    pub fn mul(&self, other: &Expr) -> Option<Expr> {
        if let (Form::Constant(left), Form::Constant(right)) = (&self.0, &other.0) {
            return left.checked_mul(*right).map(Expr::from);
        }
        let mut sum = Sum::default();
        for (left, left_coefficient) in self.all_terms() {
            for (right, right_coefficient) in other.all_terms() {
                let coefficient = left_coefficient.checked_mul(right_coefficient)?;
                let mut product: Vec<Atom> = left.iter().chain(right).cloned().collect();
                product.sort();
                sum.add_term(product, coefficient)?;
                if sum.terms.len() > 4 * MAX_TERMS {
                    return None;
                }
            }
        }
        sum.finish()
    }

    /// The quotient rounded towards −∞; `None` if the divisor is zero.
    pub fn floor_div(&self, divisor: &Expr) -> Option<Expr> {
        if self == divisor && divisor.constant().is_none() {
            return Some(Expr::from(1));
        }
        match (self.constant(), divisor.constant()) {
            (_, Some(0)) => None,
            (Some(left), Some(right)) => floor_div(left, right).map(Expr::from),
            _ => match self.exact_div(divisor) {
                Some(quotient) => Some(quotient),
                None => self.atom(divisor, Atom::FloorDiv),
            },
        }
    }

    /// The exact quotient; `None` if it has no integer coefficients.
    pub fn exact_div(&self, divisor: &Expr) -> Option<Expr> {
        if let Some(divisor) = divisor.constant() {
            return self.divide_exactly(divisor);
        }
        let (head, head_coefficient) = divisor.leading_term()?;
        let mut quotient = Expr::from(0);
        let mut rest = self.clone();
        // Each step removes the leading term and adds only smaller ones.
        for _ in 0..MAX_TERMS {
            let Some((product, coefficient)) = rest.leading_term() else { return Some(quotient) };
            if coefficient.checked_rem(head_coefficient)? != 0 {
                return None;
            }
            let coefficient = coefficient.checked_div(head_coefficient)?;
            let mut step = Sum::default();
            step.add_term(without(product, head)?, coefficient)?;
            let step = step.finish()?;
            quotient = quotient.add(&step)?;
            rest = rest.sub(&step.mul(divisor)?)?;
        }
        None
    }

    /// A lower bound, if one is known. Symbols are sizes and therefore not negative.
    pub fn lower_bound(&self) -> Option<i64> {
        let not_negative = |(product, coefficient): (&Vec<Atom>, &i64)| {
            *coefficient >= 0 && product.iter().all(Atom::is_not_negative)
        };
        self.terms().iter().all(not_negative).then_some(self.offset())
    }

    /// Size of the expression: the number of products and atoms, including nested ones.
    pub(crate) fn size(&self) -> usize {
        self.terms().len() + self.atoms()
    }

    /// The term of the highest degree, and among those the greatest; `None` for zero.
    fn leading_term(&self) -> Option<(&[Atom], i64)> {
        self.all_terms().max_by(|(left, _), (right, _)| {
            left.len().cmp(&right.len()).then_with(|| left.cmp(right))
        })
    }

    /// The quotient rounded towards +∞; `None` if the divisor is zero.
    pub fn ceil_div(&self, divisor: &Expr) -> Option<Expr> {
        let negated = self.mul(&Expr::from(-1))?;
        negated.floor_div(divisor)?.mul(&Expr::from(-1))
    }

    /// The remainder of [`Expr::floor_div`], with the sign of the divisor; `None` if the divisor is zero.
    pub fn modulo(&self, divisor: &Expr) -> Option<Expr> {
        match (self.constant(), divisor.constant()) {
            (_, Some(0)) => None,
            (Some(left), Some(right)) => {
                left.checked_sub(floor_div(left, right)?.checked_mul(right)?).map(Expr::from)
            }
            (None, Some(right)) if self.divide_exactly(right).is_some() => Some(Expr::from(0)),
            _ => self.atom(divisor, Atom::Mod),
        }
    }

    /// The maximum of both.
    pub fn larger(&self, other: &Expr) -> Option<Expr> {
        match self.sub(other)?.constant() {
            Some(difference) => Some(if difference >= 0 { self.clone() } else { other.clone() }),
            None => {
                let (left, right) = if self <= other { (self, other) } else { (other, self) };
                left.atom(right, Atom::Max)
            }
        }
    }

    /// The minimum of both.
    pub fn smaller(&self, other: &Expr) -> Option<Expr> {
        match self.sub(other)?.constant() {
            Some(difference) => Some(if difference <= 0 { self.clone() } else { other.clone() }),
            None => {
                let (left, right) = if self <= other { (self, other) } else { (other, self) };
                left.atom(right, Atom::Min)
            }
        }
    }

    /// Evaluates the expression with the symbol values of `assign`. Returns `None` if a symbol has no value,
    /// on overflow, and on division by zero.
    pub fn evaluate(&self, assign: &dyn Fn(Symbol) -> Option<i64>) -> Option<i64> {
        let mut total = self.offset();
        for (product, coefficient) in self.terms() {
            let mut value = *coefficient;
            for atom in product {
                value = value.checked_mul(atom.evaluate(assign)?)?;
            }
            total = total.checked_add(value)?;
        }
        Some(total)
    }

    /// `self / divisor` if every coefficient is a multiple of `divisor`.
    fn divide_exactly(&self, divisor: i64) -> Option<Expr> {
        let exact = |value: i64| (value.checked_rem(divisor)? == 0).then(|| value / divisor);
        let mut sum = Sum { constant: exact(self.offset())?, ..Sum::default() };
        for (product, coefficient) in self.terms() {
            sum.terms.insert(product.clone(), exact(*coefficient)?);
        }
        sum.finish()
    }

    fn atom(&self, other: &Expr, make: fn(Expr, Expr) -> Atom) -> Option<Expr> {
        let mut sum = Sum::default();
        sum.add_term(vec![make(self.clone(), other.clone())], 1)?;
        sum.finish()
    }

    fn depth(&self) -> usize {
        let atoms = self.terms().keys().flatten();
        atoms.map(Atom::depth).max().unwrap_or(0)
    }
}

impl Sum {
    fn add_term(&mut self, product: Vec<Atom>, coefficient: i64) -> Option<()> {
        if product.is_empty() {
            self.constant = self.constant.checked_add(coefficient)?;
            return Some(());
        }
        let entry = self.terms.entry(product.clone()).or_insert(0);
        *entry = entry.checked_add(coefficient)?;
        if *entry == 0 {
            self.terms.remove(&product);
        }
        Some(())
    }

    fn finish(mut self) -> Option<Expr> {
        if self.terms.is_empty() {
            return Some(Expr::from(self.constant));
        }
        let atoms = self.terms.keys().flatten().map(Atom::count);
        self.atoms = atoms.fold(0, usize::saturating_add);
        let within = self.terms.len() <= MAX_TERMS
            && self.atoms <= MAX_ATOMS
            && self.terms.keys().all(|product| {
                product.len() <= MAX_DEPTH && product.iter().all(|atom| atom.depth() <= MAX_DEPTH)
            });
        within.then(|| Expr(Form::Sum(Arc::new(self))))
    }
}

/// The quotient of `product` by `part`; `None` if `part` is not a factor.
fn without(product: &[Atom], part: &[Atom]) -> Option<Vec<Atom>> {
    let mut rest = product.to_vec();
    for atom in part {
        let at = rest.iter().position(|other| other == atom)?;
        rest.remove(at);
    }
    Some(rest)
}

impl Atom {
    fn is_not_negative(&self) -> bool {
        let certain = |expr: &Expr| expr.lower_bound().is_some_and(|bound| bound >= 0);
        match self {
            Atom::Symbol(_) => true,
            Atom::FloorDiv(left, right) | Atom::Min(left, right) => certain(left) && certain(right),
            Atom::Mod(_, divisor) => certain(divisor),
            Atom::Max(left, right) => certain(left) || certain(right),
        }
    }

    fn operands(&self) -> Option<(&Expr, &Expr)> {
        match self {
            Atom::Symbol(_) => None,
            Atom::FloorDiv(left, right)
            | Atom::Mod(left, right)
            | Atom::Max(left, right)
            | Atom::Min(left, right) => Some((left, right)),
        }
    }

    fn count(&self) -> usize {
        let nested =
            self.operands().map_or(0, |(left, right)| left.atoms().saturating_add(right.atoms()));
        nested.saturating_add(1)
    }

    fn depth(&self) -> usize {
        self.operands().map_or(0, |(left, right)| 1 + left.depth().max(right.depth()))
    }

    fn evaluate(&self, assign: &dyn Fn(Symbol) -> Option<i64>) -> Option<i64> {
        if let Atom::Symbol(symbol) = self {
            return assign(*symbol);
        }
        let (left, right) = self.operands()?;
        let (left, right) = (left.evaluate(assign)?, right.evaluate(assign)?);
        match self {
            Atom::Symbol(_) => None,
            Atom::FloorDiv(..) => floor_div(left, right),
            Atom::Mod(..) => left.checked_sub(floor_div(left, right)?.checked_mul(right)?),
            Atom::Max(..) => Some(left.max(right)),
            Atom::Min(..) => Some(left.min(right)),
        }
    }
}

fn floor_div(left: i64, right: i64) -> Option<i64> {
    let quotient = left.checked_div(right)?;
    let inexact = left % right != 0 && (left < 0) != (right < 0);
    Some(quotient - i64::from(inexact))
}

impl From<i64> for Expr {
    fn from(constant: i64) -> Expr {
        Expr(Form::Constant(constant))
    }
}

impl From<Symbol> for Expr {
    fn from(symbol: Symbol) -> Expr {
        let terms = BTreeMap::from([(vec![Atom::Symbol(symbol)], 1)]);
        Expr(Form::Sum(Arc::new(Sum { constant: 0, terms, atoms: 1 })))
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (product, coefficient) in self.terms() {
            let sign = match (first, *coefficient < 0) {
                (true, true) => "-",
                (true, false) => "",
                (false, true) => " - ",
                (false, false) => " + ",
            };
            f.write_str(sign)?;
            if coefficient.unsigned_abs() != 1 {
                write!(f, "{}*", coefficient.unsigned_abs())?;
            }
            for (index, atom) in product.iter().enumerate() {
                let separator = if index > 0 { "*" } else { "" };
                write!(f, "{separator}{atom}")?;
            }
            first = false;
        }
        match self.offset() {
            constant if first => write!(f, "{constant}"),
            0 => Ok(()),
            constant if constant < 0 => write!(f, " - {}", constant.unsigned_abs()),
            constant => write!(f, " + {constant}"),
        }
    }
}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Symbol(symbol) => write!(f, "{symbol}"),
            Atom::FloorDiv(left, right) => write!(f, "floor(({left})/({right}))"),
            Atom::Mod(left, right) => write!(f, "mod({left}, {right})"),
            Atom::Max(left, right) => write!(f, "max({left}, {right})"),
            Atom::Min(left, right) => write!(f, "min({left}, {right})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(id: u32) -> Expr {
        Expr::from(Symbol(id))
    }

    fn number(value: i64) -> Expr {
        Expr::from(value)
    }

    #[test]
    fn polynomials_have_canonical_form() {
        let (a, b) = (symbol(0), symbol(1));
        let left = a.add(&b).and_then(|sum| sum.mul(&sum)).expect("within limits");
        let squares = a.mul(&a).and_then(|aa| aa.add(&b.mul(&b)?)).expect("within limits");
        let right =
            a.mul(&b).and_then(|ab| ab.mul(&number(2))?.add(&squares)).expect("within limits");
        assert_eq!(left, right);
        assert_eq!(left.sub(&right), Some(number(0)));
        assert_eq!(right.to_string(), "s0*s0 + 2*s0*s1 + s1*s1");
    }

    #[test]
    fn division_simplifies_exact_multiples() {
        let doubled = symbol(0).mul(&number(6)).expect("within limits");
        assert_eq!(doubled.floor_div(&number(3)), symbol(0).mul(&number(2)));
        assert_eq!(doubled.modulo(&number(3)), Some(number(0)));
        let rounded =
            symbol(0).sub(&number(3)).and_then(|e| e.floor_div(&number(2))).expect("within limits");
        assert_eq!(rounded.to_string(), "floor((s0 - 3)/(2))");
        assert_eq!(rounded.evaluate(&|_| Some(2)), Some(-1));
        assert_eq!(rounded.evaluate(&|_| Some(8)), Some(2));
        assert_eq!(number(7).ceil_div(&number(2)), Some(number(4)));
        assert_eq!(symbol(0).floor_div(&number(0)), None);
    }

    #[test]
    fn exact_div_cancels_common_factors() {
        let (a, b) = (symbol(0), symbol(1));
        let sum = a.add(&b).and_then(|sum| sum.add(&number(1))).expect("within limits");
        let product =
            sum.mul(&a).and_then(|product| product.mul(&number(6))).expect("within limits");
        assert_eq!(product.exact_div(&sum), a.mul(&number(6)));
        assert_eq!(product.exact_div(&a), sum.mul(&number(6)));
        assert_eq!(
            product.floor_div(&a.mul(&number(3)).expect("within limits")),
            sum.mul(&number(2))
        );
        assert_eq!(product.exact_div(&a.mul(&number(4)).expect("within limits")), None);
        assert_eq!(a.exact_div(&b), None);
        assert_eq!(number(0).exact_div(&b), Some(number(0)));
        assert_eq!(a.exact_div(&number(0)), None);
    }

    #[test]
    fn lower_bound_assumes_nonnegative_symbols() {
        let (a, b) = (symbol(0), symbol(1));
        let sum = a.mul(&b).and_then(|product| product.add(&number(3))).expect("within limits");
        assert_eq!(sum.lower_bound(), Some(3));
        let difference = a.sub(&b).expect("within limits");
        assert_eq!(difference.lower_bound(), None);
        assert_eq!(difference.larger(&number(0)).and_then(|e| e.lower_bound()), Some(0));
        assert_eq!(difference.smaller(&a).and_then(|e| e.lower_bound()), None);
    }

    #[test]
    fn min_and_max_simplify_when_order_is_known() {
        let next = symbol(0).add(&number(1)).expect("within limits");
        assert_eq!(next.larger(&symbol(0)), Some(next.clone()));
        assert_eq!(next.smaller(&symbol(0)), Some(symbol(0)));
        let open = symbol(0).larger(&symbol(1)).expect("within limits");
        assert_eq!(open, symbol(1).larger(&symbol(0)).expect("within limits"));
        assert_eq!(open.evaluate(&|s| Some(i64::from(s.0))), Some(1));
    }

    #[test]
    fn overflow_and_excessive_growth_return_none() {
        assert_eq!(number(i64::MAX).add(&number(1)), None);
        assert_eq!(number(i64::MIN).floor_div(&number(-1)), None);
        let mut sum = number(0);
        for id in 0..20 {
            sum = sum.add(&symbol(id)).expect("within limits");
        }
        assert_eq!(sum.mul(&sum), None);
    }

    #[test]
    fn nested_expressions_have_bounded_size() {
        let mut nested = symbol(0);
        for _ in 0..8 {
            let mut sum = number(0);
            for id in 1..=40 {
                let larger = nested.add(&number(id)).and_then(|e| e.larger(&symbol(1)));
                let Some(next) = larger.and_then(|larger| sum.add(&larger)) else { return };
                sum = next;
            }
            nested = sum;
        }
        panic!("no step rejected an expression with 40^8 atoms");
    }

    #[test]
    fn constant_expressions_become_fixed_dimensions() {
        assert_eq!(Dim::from(number(4)), Dim::Known(4));
        assert_eq!(Dim::from(number(-1)), Dim::Unknown);
        assert!(Dim::from(symbol(0)).may_equal(&Dim::Known(9)));
    }
}
