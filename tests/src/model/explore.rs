//! Breadth-first search over all states of a small model, with the shortest way to a broken promise.
//!
//! Of our own rather than `stateright`: that brings a web server for its explorer and threads of its own; this is fifty lines, and needs
//! nothing that the workspace does not have.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

/// A system with finitely many states.
pub trait Model {
    type State: Clone + Eq + Hash;
    type Action: Clone + Debug;

    fn initial(&self) -> Self::State;

    /// Every action that may happen in `state`, and where it leads.
    fn next(&self, state: &Self::State, each: &mut dyn FnMut(Self::Action, Self::State));

    /// Which promise is broken here.
    fn broken(&self, state: &Self::State) -> Option<&'static str>;
}

/// What a search found.
#[derive(Debug)]
pub struct Found<A> {
    pub states: usize,
    pub steps: usize,
    /// The promise and the shortest way to break it.
    pub violation: Option<(&'static str, Vec<A>)>,
}

/// Visits every reachable state, or stops at the first broken promise.
///
/// # Panics
/// When more than `states_max` states are reachable: the model is not as small as it was meant to be.
pub fn explore<M: Model>(model: &M, states_max: usize) -> Found<M::Action> {
    let first = model.initial();
    let mut known = HashMap::from([(first.clone(), 0_usize)]);
    let mut states = vec![first];
    let mut ways: Vec<Option<(usize, M::Action)>> = vec![None];
    let (mut at, mut steps) = (0, 0);
    while at < states.len() {
        let state = states[at].clone();
        if let Some(promise) = model.broken(&state) {
            return Found { states: states.len(), steps, violation: Some((promise, way_to(&ways, at))) };
        }
        model.next(&state, &mut |action, next| {
            steps += 1;
            if !known.contains_key(&next) {
                known.insert(next.clone(), states.len());
                states.push(next);
                ways.push(Some((at, action)));
            }
        });
        assert!(states.len() <= states_max, "more than {states_max} states are reachable");
        at += 1;
    }
    Found { states: states.len(), steps, violation: None }
}

fn way_to<A: Clone>(ways: &[Option<(usize, A)>], mut at: usize) -> Vec<A> {
    let mut way = Vec::new();
    while let Some((before, action)) = &ways[at] {
        way.push(action.clone());
        at = *before;
    }
    way.reverse();
    way
}
