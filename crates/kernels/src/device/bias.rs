/// A vector that is added to a product of matrices.
#[derive(Clone, Copy, Debug, Default)]
pub enum Bias<'a> {
    /// Nothing is added.
    #[default]
    None,
    /// An element for each row.
    OfRows(&'a [f32]),
    /// An element for each column.
    OfColumns(&'a [f32]),
}

impl<'a> Bias<'a> {
    pub(super) fn transposed(self) -> Bias<'a> {
        match self {
            Bias::None => Bias::None,
            Bias::OfRows(bias) => Bias::OfColumns(bias),
            Bias::OfColumns(bias) => Bias::OfRows(bias),
        }
    }

    pub(super) fn at(self, row: usize, column: usize) -> f32 {
        match self {
            Bias::None => 0.0,
            Bias::OfRows(bias) => bias[row],
            Bias::OfColumns(bias) => bias[column],
        }
    }
}
