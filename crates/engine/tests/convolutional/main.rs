//! Convolutional programs run with their channels last, in few steps, and give what the operations give
//! one by one.

mod check;

mod convolutions;
mod layouts;
mod pools;
