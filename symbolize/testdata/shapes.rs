// Prints "name address" for places in the code, then waits for its input to
// end.
use std::io::Read;

// The program counter, of whatever function this is written in.
macro_rules! here {
    () => {{
        let pc: usize;
        #[cfg(target_arch = "x86_64")]
        unsafe { std::arch::asm!("lea {}, [rip]", out(reg) pc) };
        #[cfg(target_arch = "aarch64")]
        unsafe { std::arch::asm!("adr {}, .", out(reg) pc) };
        pc
    }};
}

mod model {
    pub struct Layer(pub usize);
    impl Layer {
        #[inline(never)]
        pub fn apply(&self) -> usize {
            here!() + self.0
        }
    }
    #[inline(never)]
    pub fn generic<T: std::fmt::Debug>(_: T) -> usize {
        unsafe { std::arch::asm!("nop") }; // equal functions would be merged
        here!()
    }
    #[inline(always)]
    fn inlined() -> usize {
        unsafe { std::arch::asm!("nop", "nop") };
        here!()
    }
    #[inline(never)]
    pub fn outer() -> usize {
        inlined()
    }
}

fn main() {
    println!("method {:x}", model::Layer(0).apply());
    println!("generic {:x}", model::generic("x"));
    println!("inlined {:x}", model::outer());
    println!("main {:x}", here!());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
