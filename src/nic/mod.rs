//! The device behind the verbs.

mod attributes;
mod completion;
mod counters;
mod error;
mod event;
mod gid;
mod qp_attributes;

pub use attributes::{DeviceAttributes, GidEntry, PORT, PortAttributes, PortState};
pub use completion::WorkCompletion;
pub use counters::Counters;
pub use error::{Error, PostError, Result};
pub use event::{AsyncElement, AsyncEvent, AsyncEventType};
pub use gid::Gid;
pub use qp_attributes::{
    AddressHandleAttributes, Connection, GlobalRoute, QpAttributeMask, QpAttributes, QpCapabilities, QpState, QpType,
};
