//! Who may use which part of a node's memory.

use std::ops::Range;

/// Hands out parts of a node's memory, one behind the other.
#[derive(Default, Debug)]
pub struct Layout {
    end: usize,
}

impl Layout {
    /// The next `len` bytes, at a multiple of 64.
    pub fn take(&mut self, len: usize) -> Range<usize> {
        let start = self.end.next_multiple_of(64);
        self.end = start + len;
        start..self.end
    }

    /// Bytes handed out.
    pub fn len(&self) -> usize {
        self.end
    }
}

/// Equal places for the buffers of requests: each request has one of its own until it completes.
#[derive(Debug)]
pub struct Places {
    start: usize,
    size: usize,
    free: Vec<usize>,
}

impl Places {
    /// `count` places of `size` bytes.
    pub fn new(layout: &mut Layout, count: usize, size: usize) -> Self {
        Self { start: layout.take(count * size).start, size, free: (0..count).rev().collect() }
    }

    /// A place that is free.
    pub fn take(&mut self) -> Option<Range<usize>> {
        let n = self.free.pop()?;
        let start = self.start + n * self.size;
        Some(start..start + self.size)
    }

    /// Gives back the place in which these pieces lie.
    pub fn give(&mut self, pieces: &[Range<usize>]) {
        if let Some(first) = pieces.first() {
            let n = (first.start - self.start) / self.size;
            assert!(!self.free.contains(&n), "place {n} given back twice");
            self.free.push(n);
        }
    }
}
