// Calls the probed function from Rust.
use std::io::{stdin, BufRead};
extern "C" {
    fn gm_test_alloc(p: *mut u64, n: usize) -> i32;
}
#[inline(never)]
#[no_mangle]
fn rust_allocate(n: usize) -> i32 {
    let mut p = 0;
    (unsafe { gm_test_alloc(&mut p, n) }) + 1
}
fn main() {
    let mut line = String::new();
    println!("ready");
    stdin().lock().read_line(&mut line).unwrap();
    let count = std::env::args().len() * 10;
    let mut sum = 0;
    for n in 0..count {
        sum += rust_allocate(n);
    }
    println!("done {}", sum);
    stdin().lock().read_line(&mut line).unwrap();
}
