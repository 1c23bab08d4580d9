//! The streams of a device: the main one, and those of branches that run beside it.

use std::cell::RefCell;

use cudarc::driver::{result, sys};

use super::device::cuda;
use super::sequence::Turn;
use ulplab_core::error::Result;

/// Where a launch is put.
#[derive(Clone, Copy)]
pub struct Place {
    pub stream: sys::CUstream,
    /// Whether it may begin while the launch before it in the stream still runs, if it is made for that. It may not where it waits for
    /// other streams, too.
    pub early: bool,
}

/// Streams, each with an event by which others wait for it. The first is the main one.
pub(super) struct Streams(RefCell<Vec<(sys::CUstream, sys::CUevent)>>);

impl Streams {
    pub fn new() -> Result<Self> {
        let streams = Self(RefCell::default());
        streams.reserve(1)?;
        Ok(streams)
    }

    /// Destroys all, while their context is there.
    pub fn close(&self) {
        for (stream, event) in self.0.take() {
            // SAFETY: both are ours, and destroyed once. An error here is ignored.
            unsafe {
                let _ = result::event::destroy(event);
                let _ = result::stream::destroy(stream);
            }
        }
    }

    /// Has as many streams as that: none can be made while launches are captured.
    pub fn reserve(&self, count: usize) -> Result<()> {
        use result::stream::{StreamKind, create};
        use sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as UNTIMED;
        let mut streams = self.0.borrow_mut();
        while streams.len() < count {
            let stream = cuda("cuStreamCreate", create(StreamKind::NonBlocking))?;
            streams.push((stream, cuda("cuEventCreate", result::event::create(UNTIMED))?));
        }
        Ok(())
    }

    /// The main stream.
    pub fn main(&self) -> sys::CUstream {
        self.0.borrow()[0].0
    }

    /// The place of a launch, which waits from there on for what it is to wait for.
    pub fn place(&self, turn: &Turn) -> Result<Place> {
        let streams = self.0.borrow();
        let (stream, _) = streams[turn.stream];
        for (other, event) in turn.waits.iter().map(|other| streams[*other]) {
            // SAFETY: streams and events live as long as this.
            unsafe {
                cuda("cuEventRecord", result::event::record(event, other))?;
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                cuda("cuStreamWaitEvent", result::stream::wait_event(stream, event, flags))?;
            }
        }
        let early = turn.waits.is_empty();
        Ok(Place { stream, early })
    }
}
