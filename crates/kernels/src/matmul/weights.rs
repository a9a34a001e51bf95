//! Weights packed in the order in which tiles read them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::tile::Shape;
use crate::Pool;
use crate::memory::{CacheLine, LINE, Memory, as_elements};
use crate::scratch::{Scratch, with_scratch};
use crate::shared::SharedPointer;
use coremill_io::pages::bring_pages;
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// The right matrix, in panels.
pub(super) trait Right: Sync {
    fn isa(&self) -> Isa;
    fn inputs(&self) -> usize;
    fn outputs(&self) -> usize;
    /// Returns the rows of a panel for some inputs; it may write them to scratch memory.
    fn part<'a>(
        &'a self,
        panel: Panel,
        inputs: Range<usize>,
        scratch: &'a mut Scratch,
    ) -> &'a [f32];

    /// Location and size in bytes of the rows of a panel for some inputs, if they are read from memory once
    /// and can be prefetched.
    fn ahead(&self, _panel: Panel, _inputs: Range<usize>) -> (*const u8, usize) {
        (std::ptr::null(), 0)
    }
}

/// Weights that can be written panel by panel.
pub trait PanelSource: Send + Sync {
    /// Writes the weights from some inputs to some outputs: a row of `width` elements for each input, with
    /// zeros after the last output.
    fn fill(&self, inputs: Range<usize>, outputs: Range<usize>, width: usize, panel: &mut [f32]);
}

/// Memory layout of packed weights.
#[derive(Clone)]
enum Storage {
    F32(Arc<Memory>),
    /// Bits of fp16 numbers, 32 in a cache line.
    F16(Arc<Memory>),
    /// Stored by the source; expanded at each use.
    Source(Arc<dyn PanelSource>),
}

/// Precision of the weights stored by [`PackedWeights::pack`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Unchanged.
    F32,
    /// Rounded to half precision, which needs half the memory.
    F16,
}

/// A matrix of weights in panels, each as wide as a tile of the instruction set.
///
/// A panel contains, for each input, the weights of adjacent outputs. Clones share the memory.
#[derive(Clone)]
pub struct PackedWeights {
    isa: Isa,
    inputs: usize,
    outputs: usize,
    storage: Storage,
}

impl PackedWeights {
    /// Packs weights from `inputs` to `outputs`.
    pub fn pack(
        pool: &Pool,
        isa: Isa,
        inputs: usize,
        outputs: usize,
        precision: Precision,
        source: &dyn PanelSource,
    ) -> PackedWeights {
        assert!(isa.is_available(), "this machine does not support {isa}");
        let panels = Panels::new(isa, outputs);
        let per_line = match precision {
            Precision::F32 => LINE,
            Precision::F16 => 2 * LINE,
        };
        let lines = (inputs * panels.padded()).div_ceil(per_line);
        let mut memory = Memory::in_small_pages(lines);
        let shared = SharedPointer(memory.as_mut_lines().as_mut_ptr());
        // A task writes some inputs of one panel, few enough to stay in the cache until they are rounded.
        let step = 256;
        let steps = inputs.div_ceil(step);
        pool.run(panels.count() * steps, |task| {
            let panel = panels.get(task / steps);
            let inputs_start = task % steps * step;
            let some = inputs_start..(inputs_start + step).min(inputs);
            let width = panel.vectors * panels.shape.lanes;
            let at = panel.start * inputs + inputs_start * width;
            let count = some.len() * width;
            let columns = panel.start..(panel.start + width).min(outputs);
            let size = LINE * size_of::<f32>() / per_line;
            // SAFETY: all inputs of all panels cover the memory, and each belongs to one task.
            #[expect(unsafe_code, reason = "tasks write to disjoint parts of a buffer")]
            bring_pages(unsafe {
                let start = shared.get().cast::<u8>().add(size * at);
                std::slice::from_raw_parts_mut(start, size * count)
            });
            match precision {
                Precision::F32 => {
                    // SAFETY: as above.
                    #[expect(unsafe_code, reason = "tasks write to disjoint parts of a buffer")]
                    let target = unsafe {
                        std::slice::from_raw_parts_mut(shared.get().cast::<f32>().add(at), count)
                    };
                    source.fill(some, columns, width, target);
                }
                Precision::F16 => with_scratch(|scratch| {
                    let wide = scratch.elements(count);
                    source.fill(some, columns, width, wide);
                    // SAFETY: as above.
                    #[expect(unsafe_code, reason = "tasks write to disjoint parts of a buffer")]
                    let target = unsafe {
                        std::slice::from_raw_parts_mut(shared.get().cast::<u16>().add(at), count)
                    };
                    dispatch(isa, Narrow { wide, target });
                }),
            }
        });
        let memory = Arc::new(memory);
        let storage = match precision {
            Precision::F32 => Storage::F32(memory),
            Precision::F16 => Storage::F16(memory),
        };
        PackedWeights { isa, inputs, outputs, storage }
    }

    /// Keeps the weights in the source and expands them at each use, panel by panel.
    pub fn keep(
        isa: Isa,
        inputs: usize,
        outputs: usize,
        source: Arc<dyn PanelSource>,
    ) -> PackedWeights {
        assert!(isa.is_available(), "this machine does not support {isa}");
        PackedWeights { isa, inputs, outputs, storage: Storage::Source(source) }
    }

    /// The instruction set of the layout.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of elements in each row of the left matrix.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of columns of the product.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Size in bytes, without the memory of a source.
    pub fn bytes(&self) -> usize {
        match &self.storage {
            Storage::F32(memory) | Storage::F16(memory) => memory.bytes(),
            Storage::Source(_) => 0,
        }
    }
}

impl Right for PackedWeights {
    fn isa(&self) -> Isa {
        self.isa
    }

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn part<'a>(
        &'a self,
        panel: Panel,
        inputs: Range<usize>,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        let width = self.width(panel);
        let at = panel.start * self.inputs + inputs.start * width;
        let count = inputs.len() * width;
        match &self.storage {
            Storage::F32(memory) => &as_elements(memory.as_lines())[at..at + count],
            Storage::F16(memory) => {
                let wide = scratch.elements(count);
                let narrow = &as_halves(memory.as_lines())[at..at + count];
                dispatch(self.isa, Widen { narrow, wide });
                wide
            }
            Storage::Source(source) => {
                let wide = scratch.elements(count);
                let columns = panel.start..(panel.start + width).min(self.outputs);
                source.fill(inputs, columns, width, wide);
                wide
            }
        }
    }

    fn ahead(&self, panel: Panel, inputs: Range<usize>) -> (*const u8, usize) {
        let width = self.width(panel);
        let at = panel.start * self.inputs + inputs.start * width;
        let count = inputs.len() * width;
        match &self.storage {
            Storage::F32(memory) => (memory.as_bytes().wrapping_add(4 * at), 4 * count),
            Storage::F16(memory) => (memory.as_bytes().wrapping_add(2 * at), 2 * count),
            Storage::Source(_) => (std::ptr::null(), 0),
        }
    }
}

impl PackedWeights {
    fn width(&self, panel: Panel) -> usize {
        panel.vectors * Shape::of(self.isa).lanes
    }
}

impl fmt::Debug for PackedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PackedWeights { isa, inputs, outputs, .. } = self;
        write!(f, "PackedWeights({inputs} to {outputs}, {isa})")
    }
}

fn as_halves(lines: &[CacheLine]) -> &[u16] {
    // SAFETY: a line is 32 fp16 numbers without padding, and all bit patterns are valid.
    #[expect(unsafe_code, reason = "reinterprets cache lines as their halves")]
    unsafe {
        std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 2 * LINE)
    }
}

/// Division of columns into panels.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub shape: Shape,
    columns: usize,
    count: usize,
    /// Number of panels that are one vector narrower than a tile; they are the last ones.
    narrow: usize,
}

/// Adjacent columns: the first column, and the number of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panel {
    pub start: usize,
    pub vectors: usize,
}

impl Panels {
    pub(super) fn new(isa: Isa, columns: usize) -> Panels {
        let shape = Shape::of(isa);
        let vectors = columns.div_ceil(shape.lanes);
        let mut count = vectors.div_ceil(shape.vectors);
        // Tiles of two vectors are as fast as tiles of three. Use an even number of panels, so that two
        // threads have equal work.
        if shape.vectors == 3 && count % 2 == 1 && vectors >= 2 * (count + 1) {
            count += 1;
        }
        Panels { shape, columns, count, narrow: count * shape.vectors - vectors }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Number of columns, rounded up to whole vectors.
    pub(super) fn padded(&self) -> usize {
        self.columns.next_multiple_of(self.shape.lanes)
    }

    pub(super) fn get(&self, index: usize) -> Panel {
        let Shape { vectors, lanes, .. } = self.shape;
        if self.count == 1 {
            return Panel { start: 0, vectors: vectors - self.narrow };
        }
        let wide = self.count - self.narrow;
        if index < wide {
            return Panel { start: index * vectors * lanes, vectors };
        }
        let start = wide * vectors + (index - wide) * (vectors - 1);
        Panel { start: start * lanes, vectors: vectors - 1 }
    }
}

struct Narrow<'a> {
    wide: &'a [f32],
    target: &'a mut [u16],
}

impl Kernel for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        assert_eq!(self.wide.len(), self.target.len());
        assert_eq!(self.wide.len() % V::LANES, 0);
        for at in (0..self.wide.len()).step_by(V::LANES) {
            // SAFETY: both have the same number of elements, a multiple of a vector.
            #[expect(unsafe_code, reason = "vectors are loaded and stored without bounds checks")]
            unsafe {
                V::load(self.wide.as_ptr().add(at)).store_f16(self.target.as_mut_ptr().add(at));
            }
        }
    }
}

struct Widen<'a> {
    narrow: &'a [u16],
    wide: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        assert_eq!(self.wide.len(), self.narrow.len());
        assert_eq!(self.wide.len() % V::LANES, 0);
        for at in (0..self.wide.len()).step_by(V::LANES) {
            // SAFETY: both have the same number of elements, a multiple of a vector.
            #[expect(unsafe_code, reason = "vectors are loaded and stored without bounds checks")]
            unsafe {
                V::load_f16(self.narrow.as_ptr().add(at)).store(self.wide.as_mut_ptr().add(at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_cover_all_columns_once() {
        for isa in Isa::ALL {
            for columns in 0..700 {
                let panels = Panels::new(isa, columns);
                let mut next = 0;
                for index in 0..panels.count() {
                    let panel = panels.get(index);
                    assert_eq!(panel.start, next, "{isa} {columns}");
                    assert!((1..=panels.shape.vectors).contains(&panel.vectors));
                    next += panel.vectors * panels.shape.lanes;
                }
                assert_eq!(next, panels.padded(), "{isa} {columns}");
            }
        }
    }
}
