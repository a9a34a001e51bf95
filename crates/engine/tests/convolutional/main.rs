//! Programs whose steps are known run in these, convolutional ones with their channels last, and give what the
//! operations give one by one.

mod caches;
mod check;

mod convolutions;
mod layouts;
mod pools;
