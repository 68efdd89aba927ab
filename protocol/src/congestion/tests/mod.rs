//! DCQCN held to numbers worked out by hand, whatever happens to it, and flows that share a bottleneck.

mod bottleneck;
mod bounds;
mod convergence;
mod traces;
