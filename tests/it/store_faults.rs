//! What happens to the store's file, its disk and its process must not change what was promised.

mod crashes;
mod disk;
mod locks;
mod opening;
mod replaced;
mod rules;
