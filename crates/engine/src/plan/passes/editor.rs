use super::super::graph::{Graph, Node, Operand, Region, SlotId};

/// Edits the nodes of a region, with the writer and the readers of each slot.
///
/// A node that replaces several is inserted at the index of the last one, so that all inputs have
/// been written.
pub(crate) struct Editor {
    inputs: Vec<SlotId>,
    outputs: Vec<Operand>,
    nodes: Vec<Option<Node>>,
    /// Index of the node that writes each slot, by [`SlotId::index`].
    writers: Vec<Option<usize>>,
    /// Indices of the nodes that read each slot, one entry per use.
    readers: Vec<Vec<usize>>,
    /// For each entry of `readers`, the index of the input that reads the slot.
    ports: Vec<Vec<usize>>,
    /// For each input of a node, its index in `readers` of its slot. Makes removal of a use take
    /// constant time.
    seats: Vec<Vec<usize>>,
    /// Whether the region's outputs or nested regions read a slot.
    escapes: Vec<bool>,
}

impl Editor {
    /// Starts editing a region.
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

    /// Returns the edited region.
    pub(crate) fn finish(self) -> Region {
        Region {
            inputs: self.inputs,
            nodes: self.nodes.into_iter().flatten().collect(),
            outputs: self.outputs,
            releases: Vec::new(),
        }
    }

    /// Number of indices, including removed nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node at an index, `None` if it was removed.
    pub(crate) fn node(&self, index: usize) -> Option<&Node> {
        self.nodes.get(index)?.as_ref()
    }

    /// Index of the node that writes a slot. `None` for inputs and slots of outer regions.
    pub(crate) fn writer(&self, slot: SlotId) -> Option<usize> {
        *self.writers.get(slot.index())?
    }

    /// The node that writes an operand.
    pub(crate) fn writer_of(&self, operand: &Operand) -> Option<(usize, &Node)> {
        let index = self.writer(operand.slot()?)?;
        Some((index, self.node(index)?))
    }

    /// Indices of the nodes that read a slot, one entry per use.
    pub(crate) fn readers(&self, slot: SlotId) -> &[usize] {
        self.readers.get(slot.index()).map_or(&[], Vec::as_slice)
    }

    /// Returns true if the region's outputs or nested regions read a slot, so that it must be
    /// written.
    pub(crate) fn escapes(&self, slot: SlotId) -> bool {
        self.escapes.get(slot.index()).is_some_and(|&escapes| escapes)
    }

    /// The only node that reads a slot. `None` if there are more uses.
    pub(crate) fn sole_reader(&self, slot: SlotId) -> Option<(usize, &Node)> {
        if self.escapes(slot) {
            return None;
        }
        match self.readers(slot) {
            &[index] => Some((index, self.node(index)?)),
            _ => None,
        }
    }

    /// Removes a node.
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

    /// Inserts a node at the index of a removed one. The graph may have new slots.
    pub(crate) fn put(&mut self, graph: &Graph, index: usize, node: Node) {
        debug_assert!(self.nodes[index].is_none());
        self.reserve(graph);
        self.note(index, &node);
        self.nodes[index] = Some(node);
    }

    /// Inserts a node before an index. Indices from there on grow by one.
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

/// Indices of a node's inputs that read slots, with the slot indices.
fn read_slots(node: &Node) -> impl Iterator<Item = (usize, usize)> {
    let slots = node.inputs.iter().map(Operand::slot).enumerate();
    slots.filter_map(|(input, slot)| Some((input, slot?.index())))
}
