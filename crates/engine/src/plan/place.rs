//! Memory planning: offsets in the arena, and the last use of values outside it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;

use coremill_kernels::FLOATS_PER_LINE;

use super::graph::{Graph, Node, NodeKind, Operand, Region, SlotId, SlotKind};

/// Memory of a graph's values.
#[derive(Debug, Default)]
pub(crate) struct MemoryPlan {
    /// Range of each slot in the arena, by [`SlotId::index`]. `None` for slots on the heap.
    pub(crate) slots: Vec<Option<Range<usize>>>,
    /// Range of each node's scratch memory in the arena.
    pub(crate) scratch: Vec<Range<usize>>,
    /// Size of the arena in floats.
    pub(crate) length: usize,
}

/// A range of the arena with a limited lifetime.
struct Allocation {
    /// Lifetime, as a range of nodes of the body: from the first writer to the last reader.
    life: Range<usize>,
    length: usize,
    place: Range<usize>,
    owner: Owner,
}

enum Owner {
    Slot(SlotId),
    Scratch(usize),
}

/// Maximum size, in floats, of an arena in which allocations of different lengths do not overlap. It is
/// part of a last-level cache.
pub(super) const MAX_SEPARATE: usize = 4 << 20;

/// Assigns arena offsets to the outputs of kernels in the body that have known shapes. Allocations
/// with overlapping lifetimes do not overlap in memory. The largest are placed first, at the lowest
/// free offset.
///
/// Allocations of different lengths do not overlap either if the arena then has at most `separate` floats:
/// threads divide the rows of each tensor alike, so that each thread writes to memory that it wrote to
/// before. On an AMD EPYC, memory in the cache of another processor takes four times as long.
///
/// Also fills each region's `releases` with the slots that are not read later.
pub(super) fn place(graph: &mut Graph, separate: usize) -> MemoryPlan {
    let mut body = std::mem::take(&mut graph.body);
    note_releases(&mut body, graph.slots.len());

    let given = given(&body, graph.slots.len());
    let mut tenants: Vec<Allocation> = Vec::new();
    // The allocation that holds a slot's elements, also for aliases.
    let mut shown: Vec<Option<usize>> = vec![None; graph.slots.len()];
    for (index, node) in body.nodes.iter().enumerate() {
        node_reads(node, &mut |slot| {
            if let Some(tenant) = shown[slot.index()] {
                tenants[tenant].life.end = index + 1;
            }
        });
        match &node.kind {
            NodeKind::Alias => {
                if let ([Operand::Slot(from)], [to]) = (&node.inputs[..], &node.outputs[..]) {
                    shown[to.index()] = shown[from.index()];
                }
            }
            NodeKind::Kernel(kernel) => {
                for &output in node.outputs.iter().filter(|output| !given[output.index()]) {
                    let slot = graph.slot(output);
                    let count = slot.shape.as_ref().map(|shape| shape.iter().product::<usize>());
                    if let (Some(length), SlotKind::Tensor, true) =
                        (count, slot.holds, slot.dtype.is_float())
                    {
                        shown[output.index()] = Some(tenants.len());
                        let (life, owner) = (index..index + 1, Owner::Slot(output));
                        tenants.push(Allocation { life, length, place: 0..0, owner });
                    }
                }
                let (life, owner) = (index..index + 1, Owner::Scratch(index));
                let length = kernel.scratch();
                tenants.push(Allocation { life, length, place: 0..0, owner });
            }
            _ => {}
        }
    }
    let length = settle(&mut tenants, separate);
    let mut places = MemoryPlan {
        slots: shown.iter().map(|tenant| tenant.map(|at| tenants[at].place.clone())).collect(),
        scratch: vec![0..0; body.nodes.len()],
        length,
    };
    for tenant in tenants {
        match tenant.owner {
            Owner::Scratch(node) => places.scratch[node] = tenant.place,
            Owner::Slot(slot) => debug_assert_eq!(places.slots[slot.index()], Some(tenant.place)),
        }
    }
    graph.body = body;
    places
}

/// Marks the slots, by [`SlotId::index`], whose elements are results. Results are written to memory
/// of their own.
fn given(body: &Region, slots: usize) -> Vec<bool> {
    let mut given = vec![false; slots];
    for slot in body.outputs.iter().filter_map(Operand::slot) {
        given[slot.index()] = true;
    }
    for node in body.nodes.iter().rev() {
        if let (NodeKind::Alias, [Operand::Slot(from)], [to]) =
            (&node.kind, &node.inputs[..], &node.outputs[..])
        {
            given[from.index()] |= given[to.index()];
        }
    }
    given
}

/// Maximum number of allocations for the quadratic algorithm.
const FEW: usize = 4096;

/// Sets the offset of each allocation. Returns the size of the arena. Allocations of different lengths are
/// separate if the arena then has at most `separate` floats.
fn settle(tenants: &mut [Allocation], separate: usize) -> usize {
    if tenants.len() > FEW {
        return settle_in_time(tenants);
    }
    let lengths: BTreeSet<usize> = tenants.iter().map(|tenant| tenant.length).collect();
    if lengths.into_iter().fold(0, usize::saturating_add) <= separate {
        let length = settle_largest_first(tenants, true);
        if length <= separate {
            return length;
        }
    }
    settle_largest_first(tenants, false)
}

/// Places the largest allocation first, at the lowest free offset. Takes quadratic time.
fn settle_largest_first(tenants: &mut [Allocation], separate: bool) -> usize {
    let mut order: Vec<usize> = (0..tenants.len()).collect();
    order.sort_by_key(|&at| (Reverse(tenants[at].length), at));
    let mut settled: Vec<usize> = Vec::new();
    let mut total = 0;
    for at in order {
        let (life, length) = (tenants[at].life.clone(), tenants[at].length);
        let mut neighbours: Vec<Range<usize>> = settled
            .iter()
            .map(|&other| &tenants[other])
            .filter(|other| {
                let coexist = other.life.start < life.end && life.start < other.life.end;
                coexist || (separate && other.length != length)
            })
            .map(|other| other.place.clone())
            .collect();
        neighbours.sort_by_key(|place| place.start);
        let mut start = 0;
        for neighbour in neighbours {
            if start + length <= neighbour.start {
                break;
            }
            start = start.max(neighbour.end.next_multiple_of(FLOATS_PER_LINE));
        }
        tenants[at].place = start..start + length;
        total = total.max(start + length);
        if length > 0 {
            settled.push(at);
        }
    }
    total
}

/// Places allocations in the order of their start, each in the smallest gap that is large enough.
fn settle_in_time(tenants: &mut [Allocation]) -> usize {
    let mut order: Vec<usize> = (0..tenants.len()).collect();
    order.sort_by_key(|&at| (tenants[at].life.start, Reverse(tenants[at].length), at));
    let mut gaps = FreeList::default();
    let mut leaving: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
    let mut total = 0;
    for at in order {
        let Allocation { life, length, .. } = &tenants[at];
        while let Some(&Reverse((end, other))) = leaving.peek()
            && end <= life.start
        {
            leaving.pop();
            let place = &tenants[other].place;
            gaps.add(place.start..place.end.next_multiple_of(FLOATS_PER_LINE));
        }
        if *length == 0 {
            continue;
        }
        let needed = length.next_multiple_of(FLOATS_PER_LINE);
        let start = gaps.take(needed).unwrap_or_else(|| {
            // Extend the free range at the end of the arena.
            let start = gaps.take_last(total).unwrap_or(total);
            total = start + needed;
            start
        });
        leaving.push(Reverse((life.end, at)));
        tenants[at].place = start..start + length;
    }
    total
}

/// Free ranges of the arena.
#[derive(Default)]
struct FreeList {
    /// The end of each range, by its start.
    by_start: BTreeMap<usize, usize>,
    /// Length and start of each range.
    by_length: BTreeSet<(usize, usize)>,
}

impl FreeList {
    /// Adds a range and merges it with adjacent ones.
    fn add(&mut self, part: Range<usize>) {
        let Range { mut start, mut end } = part;
        if let Some((&before, &before_end)) = self.by_start.range(..start).next_back()
            && before_end == start
        {
            self.remove(before, before_end);
            start = before;
        }
        if let Some(&after_end) = self.by_start.get(&end) {
            self.remove(end, after_end);
            end = after_end;
        }
        self.by_start.insert(start, end);
        self.by_length.insert((end - start, start));
    }

    /// Takes `length` from the smallest range that is large enough. Returns the start.
    fn take(&mut self, length: usize) -> Option<usize> {
        let &(found, start) = self.by_length.range((length, 0)..).next()?;
        self.remove(start, start + found);
        if found > length {
            self.add(start + length..start + found);
        }
        Some(start)
    }

    /// Takes the range that ends at `end`. Returns its start.
    fn take_last(&mut self, end: usize) -> Option<usize> {
        let (&start, &found) = self.by_start.last_key_value()?;
        (found == end).then(|| self.remove(start, found))?;
        Some(start)
    }

    fn remove(&mut self, start: usize, end: usize) {
        self.by_start.remove(&start);
        self.by_length.remove(&(end - start, start));
    }
}

/// Visits all slots that a node reads, including its nested regions.
fn node_reads(node: &Node, visit: &mut dyn FnMut(SlotId)) {
    node.inputs.iter().filter_map(Operand::slot).for_each(&mut *visit);
    for region in node.regions() {
        region.reads(visit);
    }
}

/// Records for each node the slots that are not read after it.
fn note_releases(region: &mut Region, slots: usize) {
    let mut seen = vec![false; slots];
    let mut mine = vec![false; slots];
    let written = region.nodes.iter().flat_map(|node| &node.outputs).chain(&region.inputs);
    written.for_each(|slot| mine[slot.index()] = true);
    for slot in region.outputs.iter().filter_map(Operand::slot) {
        seen[slot.index()] = true;
    }
    let mut releases = vec![Vec::new(); region.nodes.len()];
    for (index, node) in region.nodes.iter().enumerate().rev() {
        let mut note = |slot: SlotId| {
            if mine[slot.index()] && !std::mem::replace(&mut seen[slot.index()], true) {
                releases[index].push(slot);
            }
        };
        node.outputs.iter().copied().for_each(&mut note);
        node_reads(node, &mut note);
    }
    region.releases = releases;
    for node in &mut region.nodes {
        if let NodeKind::Cond(regions) | NodeKind::Loop(regions) = &mut node.kind {
            regions.iter_mut().for_each(|region| note_releases(region, slots));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(life: Range<usize>, length: usize) -> Allocation {
        Allocation { life, length, place: 0..0, owner: Owner::Scratch(0) }
    }

    /// Checks that allocations alive at the same time do not overlap. Returns the size of the
    /// arena.
    fn check_no_overlap(
        allocations: &mut [Allocation],
        settle: impl Fn(&mut [Allocation]) -> usize,
    ) -> usize {
        let total = settle(allocations);
        for (index, one) in allocations.iter().enumerate() {
            assert_eq!((one.place.len(), one.place.end <= total), (one.length, true));
            for other in &allocations[..index] {
                let both_live = one.life.start < other.life.end && other.life.start < one.life.end;
                let overlap =
                    one.place.start < other.place.end && other.place.start < one.place.end;
                assert!(!(both_live && overlap), "{:?} and {:?}", one.place, other.place);
            }
        }
        total
    }

    #[test]
    fn allocations_share_memory_if_lifetimes_are_disjoint() {
        let all = || {
            vec![
                allocation(0..2, 100),
                allocation(1..3, 50),
                allocation(2..4, 100),
                allocation(3..5, 40),
            ]
        };
        let largest_first =
            |allocations: &mut [Allocation]| settle_largest_first(allocations, false);
        for total in [
            check_no_overlap(&mut all(), largest_first),
            check_no_overlap(&mut all(), settle_in_time),
        ] {
            assert!(total < 200, "the arena has {total} floats, but at most 150 are live at once");
        }
    }

    #[test]
    fn separate_mode_shares_memory_only_among_equal_lengths() {
        let mut allocations = vec![
            allocation(0..2, 100),
            allocation(1..3, 50),
            allocation(2..4, 100),
            allocation(4..5, 50),
        ];
        check_no_overlap(&mut allocations, |allocations| settle_largest_first(allocations, true));
        let places: Vec<_> =
            allocations.iter().map(|allocation| allocation.place.clone()).collect();
        assert_eq!((&places[0], &places[1]), (&places[2], &places[3]));
        assert!(places[1].start >= places[0].end);
    }

    #[test]
    fn separates_lengths_only_within_size_limit() {
        let all = || vec![allocation(0..1, 100), allocation(2..3, 50)];
        let separate = settle(&mut all(), 1000);
        assert!(separate >= 150);
        assert_eq!(settle(&mut all(), separate), separate);
        assert_eq!(settle(&mut all(), separate - 1), 100);
        assert_eq!(settle(&mut all(), 0), 100);
    }

    #[test]
    fn arena_size_stays_near_peak_live_size() {
        let mut state = 7u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below as usize
        };
        let mut allocations: Vec<Allocation> = (0..600)
            .map(|_| {
                let start = draw(200);
                allocation(start..start + 1 + draw(20), draw(500))
            })
            .collect();
        let alive = |time: usize| {
            let here = allocations.iter().filter(|allocation| allocation.life.contains(&time));
            here.map(|allocation| allocation.length.next_multiple_of(FLOATS_PER_LINE))
                .sum::<usize>()
        };
        let peak = (0..220).map(alive).max().unwrap_or(0);
        let total = check_no_overlap(&mut allocations, settle_in_time);
        assert!(
            total < peak * 3 / 2,
            "the arena has {total} floats, but at most {peak} are live at once"
        );
    }
}
