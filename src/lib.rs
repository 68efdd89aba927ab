//! A RoCE v2 NIC in user space.
pub mod capture;
pub mod ceiling;
pub mod clock;
pub mod link;
mod nic;
pub mod verbs;
