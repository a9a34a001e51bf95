use super::super::graph::{Graph, Node, Operand, Region, SlotId};

/// The nodes of a region while a pass rewrites them: who writes and who reads each slot.
///
/// A node that stands for several goes to the place of the last of them, where everything that they read
/// has been written.
pub(crate) struct Editor {
    inputs: Vec<SlotId>,
    outputs: Vec<Operand>,
    nodes: Vec<Option<Node>>,
    /// The node that writes a slot, by [`SlotId::index`].
    writers: Vec<Option<usize>>,
    /// The nodes that read a slot, once for each time that they do.
    readers: Vec<Vec<usize>>,
    /// Which of its inputs each of these readers reads the slot by.
    ports: Vec<Vec<usize>>,
    /// Where each input of a node stands among the readers of its slot, so that one of many is found at once.
    seats: Vec<Vec<usize>>,
    /// Whether a slot is read by the region's outputs or by regions inside.
    escapes: Vec<bool>,
}

impl Editor {
    /// Takes a region apart.
    pub(crate) fn new(graph: &Graph, region: Region) -> Editor {
        let mut editor = Editor {
            inputs: region.inputs,
            outputs: region.outputs,
            nodes: Vec::new(),
            writers: Vec::new(),
            readers: Vec::new(),
            ports: Vec::new(),
            seats: vec![Vec::new(); region.nodes.len()],
            escapes: Vec::new(),
        };
        editor.reserve(graph);
        for slot in editor.outputs.iter().filter_map(Operand::slot) {
            editor.escapes[slot.index()] = true;
        }
        for (index, node) in region.nodes.iter().enumerate() {
            editor.note(index, node);
        }
        editor.nodes = region.nodes.into_iter().map(Some).collect();
        editor
    }

    /// The region, put together again.
    pub(crate) fn finish(self) -> Region {
        Region {
            inputs: self.inputs,
            nodes: self.nodes.into_iter().flatten().collect(),
            outputs: self.outputs,
            releases: Vec::new(),
        }
    }

    /// How many places there are, empty ones included.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node at a place; none if it was taken.
    pub(crate) fn node(&self, index: usize) -> Option<&Node> {
        self.nodes.get(index)?.as_ref()
    }

    /// The place of the node that writes a slot; none for inputs and slots of regions around.
    pub(crate) fn writer(&self, slot: SlotId) -> Option<usize> {
        *self.writers.get(slot.index())?
    }

    /// The node that writes what an operand reads.
    pub(crate) fn writer_of(&self, operand: &Operand) -> Option<(usize, &Node)> {
        let index = self.writer(operand.slot()?)?;
        Some((index, self.node(index)?))
    }

    /// The places of the nodes that read a slot, once for each time that they do.
    pub(crate) fn readers(&self, slot: SlotId) -> &[usize] {
        self.readers.get(slot.index()).map_or(&[], Vec::as_slice)
    }

    /// Whether a slot is read by the region's outputs or by regions inside, so that it must be written.
    pub(crate) fn escapes(&self, slot: SlotId) -> bool {
        self.escapes.get(slot.index()).is_some_and(|&escapes| escapes)
    }

    /// The one node that reads a slot, if one does, once, and nobody else.
    pub(crate) fn sole_reader(&self, slot: SlotId) -> Option<(usize, &Node)> {
        if self.escapes(slot) {
            return None;
        }
        match self.readers(slot) {
            &[index] => Some((index, self.node(index)?)),
            _ => None,
        }
    }

    /// Takes a node out.
    pub(crate) fn take(&mut self, index: usize) -> Option<Node> {
        let node = self.nodes.get_mut(index)?.take()?;
        for slot in &node.outputs {
            self.writers[slot.index()] = None;
        }
        for (input, slot) in read_slots(&node) {
            let at = self.seats[index][input];
            let (readers, ports) = (&mut self.readers[slot], &mut self.ports[slot]);
            readers.swap_remove(at);
            ports.swap_remove(at);
            if let (Some(&moved), Some(&port)) = (readers.get(at), ports.get(at)) {
                self.seats[moved][port] = at;
            }
        }
        Some(node)
    }

    /// Puts a node at a place that is empty, after nodes were added to the graph's slots perhaps.
    pub(crate) fn put(&mut self, graph: &Graph, index: usize, node: Node) {
        debug_assert!(self.nodes[index].is_none());
        self.reserve(graph);
        self.note(index, &node);
        self.nodes[index] = Some(node);
    }

    /// Puts a node right before the one at a place; places from there on move up by one.
    pub(crate) fn insert(&mut self, graph: &Graph, index: usize, node: Node) {
        for place in self.writers.iter_mut().flatten().chain(self.readers.iter_mut().flatten()) {
            if *place >= index {
                *place += 1;
            }
        }
        self.reserve(graph);
        self.seats.insert(index, Vec::new());
        self.note(index, &node);
        self.nodes.insert(index, Some(node));
    }

    fn reserve(&mut self, graph: &Graph) {
        let count = graph.slots.len().max(self.writers.len());
        self.writers.resize(count, None);
        self.readers.resize(count, Vec::new());
        self.ports.resize(count, Vec::new());
        self.escapes.resize(count, false);
    }

    fn note(&mut self, index: usize, node: &Node) {
        for slot in &node.outputs {
            self.writers[slot.index()] = Some(index);
        }
        let mut seats = vec![0; node.inputs.len()];
        for (input, slot) in read_slots(node) {
            seats[input] = self.readers[slot].len();
            self.readers[slot].push(index);
            self.ports[slot].push(input);
        }
        self.seats[index] = seats;
        for region in node.regions() {
            region.reads(&mut |slot| self.escapes[slot.index()] = true);
        }
    }
}

/// The inputs of a node that read slots, and the indices of these.
fn read_slots(node: &Node) -> impl Iterator<Item = (usize, usize)> {
    let slots = node.inputs.iter().map(Operand::slot).enumerate();
    slots.filter_map(|(input, slot)| Some((input, slot?.index())))
}
