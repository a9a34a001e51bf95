//! Indirection tables of convolutions: the locations of the pieces under the window, for each result.

use std::ops::Range;

use crate::matmul::Window;

/// Maximum number of channels for which the taps in a row of the window form one piece.
const FEW_CHANNELS: usize = 16;

/// Locations of the pieces of each row of the left matrix, for a [`Window`] over codes. A table is built once
/// and used for any number of runs.
#[derive(Debug)]
pub struct IndirectionTable {
    window: Window,
    /// Size of the image that the entries refer to; larger than the input if it must be padded first.
    extents: [usize; 3],
    /// Number of pieces in a row; `length` is the number of bytes of each.
    pub(super) taps: usize,
    pub(super) length: usize,
    /// One entry for each result of an image and each tap.
    pub(super) entries: Vec<u32>,
    /// Codes of zero, read instead of pieces outside the image.
    outside: Vec<u8>,
    zero: u8,
}

/// Entry of a piece outside the image.
const OUTSIDE: u32 = u32::MAX;

impl IndirectionTable {
    /// Builds the table for an input in which `zero` is the code of zero. Returns `None` if an image has 2³¹
    /// bytes or more.
    pub fn new(window: Window, zero: u8) -> Option<IndirectionTable> {
        let joined = window.channels <= FEW_CHANNELS
            && window.pixel_stride == window.channels
            && window.kernel[2] > 1
            && window.dilation[2] == 1;
        IndirectionTable::find(window, zero, joined)
    }

    /// Like [`new`](Self::new), with one piece for each pixel under the window. The codes for pieces outside
    /// have the length of a line, so that a window can move along them.
    pub fn of_pixels(window: Window, zero: u8) -> Option<IndirectionTable> {
        let mut pieces = IndirectionTable::find(window, zero, false)?;
        let line = pieces.inner().len().checked_mul(pieces.step())?;
        let outside = &mut pieces.outside;
        outside.try_reserve_exact(line).ok()?;
        outside.resize(outside.len().max(line + super::SLACK), zero);
        Some(pieces)
    }

    /// The results in a line whose windows are horizontally inside the image.
    pub(super) fn inner(&self) -> Range<usize> {
        let Window { input, output, kernel, stride, dilation, padding, .. } = &self.window;
        let first = padding[2].div_ceil(stride[2]);
        let room = (input[2] + padding[2]).checked_sub((kernel[2] - 1) * dilation[2]);
        let last = room.map_or(0, |room| room.div_ceil(stride[2])).min(output[2]);
        if first < last { first..last } else { 0..0 }
    }

    /// Distance in bytes between the pixels of adjacent results in a line.
    pub(super) fn step(&self) -> usize {
        self.window.stride[2] * self.window.pixel_stride
    }

    fn find(window: Window, zero: u8, joined: bool) -> Option<IndirectionTable> {
        let Window { input, output, kernel, stride, dilation, padding, channels, .. } =
            window.clone();
        let reach = |axis: usize| -> Option<usize> {
            let last = output[axis].checked_sub(1)?.checked_mul(stride[axis])?;
            last.checked_add((kernel[axis] - 1).checked_mul(dilation[axis])?)?.checked_add(1)
        };
        // Joined pieces must be contiguous in memory, also at the edges.
        let extents = match joined {
            true => {
                let mut extents = [0; 3];
                for (axis, extent) in extents.iter_mut().enumerate() {
                    *extent = reach(axis)?.max(input[axis].checked_add(padding[axis])?);
                }
                extents
            }
            false => input,
        };
        let all = extents.iter().try_fold(window.pixel_stride, |all, &one| all.checked_mul(one))?;
        if all >= 1 << 31 {
            return None;
        }
        let (taps, length) = match joined {
            true => (kernel[0] * kernel[1], kernel[2] * channels),
            false => (kernel.iter().product(), channels),
        };
        let before = if joined { [0; 3] } else { padding };
        let place = |axis: usize, result: usize, tap: usize| {
            let at = (result * stride[axis] + tap * dilation[axis]).checked_sub(before[axis])?;
            (at < extents[axis]).then_some(at)
        };
        let mut entries = Vec::new();
        entries.try_reserve_exact(output.iter().product::<usize>().checked_mul(taps)?).ok()?;
        let columns = if joined { 1 } else { kernel[2] };
        for z in 0..output[0] {
            for y in 0..output[1] {
                for x in 0..output[2] {
                    for tap_z in 0..kernel[0] {
                        for tap_y in 0..kernel[1] {
                            let line = place(0, z, tap_z).zip(place(1, y, tap_y));
                            let line = line.map(|(z, y)| (z * extents[1] + y) * extents[2]);
                            entries.extend((0..columns).map(|tap_x| {
                                let pixel = line.zip(place(2, x, tap_x)).map(|(line, x)| line + x);
                                pixel.map_or(OUTSIDE, |pixel| (pixel * window.pixel_stride) as u32)
                            }));
                        }
                    }
                }
            }
        }
        let outside = vec![zero; length + super::SLACK];
        Some(IndirectionTable { window, extents, taps, length, entries, outside, zero })
    }

    /// The window of the table.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Number of pieces in a row, and number of codes in each piece.
    pub fn shape(&self) -> [usize; 2] {
        [self.taps, self.length]
    }

    /// Returns a function that resolves an entry to a pointer into the image at `image`. It holds no
    /// reference, so that loops that store the pointers can be vectorized.
    #[inline(always)]
    pub(super) fn finder(&self, image: *const u8) -> impl Fn(u32) -> *const u8 + use<> {
        let outside = self.outside.as_ptr();
        move |entry| match entry {
            OUTSIDE => outside,
            entry => image.wrapping_add(entry as usize),
        }
    }

    pub(super) fn results(&self) -> usize {
        self.window.output.iter().product()
    }

    /// Size in bytes of the image that the entries refer to.
    pub(super) fn image_bytes(&self) -> usize {
        self.extents.iter().product::<usize>() * self.window.pixel_stride
    }

    /// Number of codes in a padded copy of the input; 0 if none is needed.
    pub fn scratch(&self) -> usize {
        match self.extents == self.window.input {
            true => 0,
            false => self.window.images * self.image_bytes(),
        }
    }

    /// Returns the input in the layout that the entries refer to, padded into `scratch` if necessary.
    ///
    /// # Panics
    /// Panics if the scratch memory is shorter than [`IndirectionTable::scratch`] plus
    /// [`SLACK`](super::SLACK).
    pub fn padded<'a>(&self, input: &'a [u8], scratch: &'a mut [u8]) -> &'a [u8] {
        if self.scratch() == 0 {
            return input;
        }
        let Window { input: inside, padding, pixel_stride, images, .. } = self.window;
        let scratch = &mut scratch[..self.scratch() + super::SLACK];
        scratch.fill(self.zero);
        let [_, height, width] = self.extents;
        let line = inside[2] * pixel_stride;
        for image in 0..images {
            for z in 0..inside[0] {
                for y in 0..inside[1] {
                    let from = ((image * inside[0] + z) * inside[1] + y) * line;
                    let to = ((image * self.extents[0] + z + padding[0]) * height + y + padding[1])
                        * width
                        + padding[2];
                    scratch[to * pixel_stride..][..line].copy_from_slice(&input[from..][..line]);
                }
            }
        }
        scratch
    }
}
