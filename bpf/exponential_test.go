package bpf

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// exponential runs the kernel side's own gm_exponential, compiled for this machine.
func exponential(t *testing.T, mean uint64, random func(yield func(uint32) bool), check func(random uint32, got uint64)) {
	t.Helper()
	const program = `#include <stdio.h>
typedef unsigned int u32;
typedef unsigned long long u64;
#include "exponential.h"
int main(void) {
	u32 random;
	u64 mean;
	while (scanf("%u %llu", &random, &mean) == 2)
		printf("%llu\n", gm_exponential(random, mean));
}
`
	binary := filepath.Join(t.TempDir(), "exponential")
	gcc := exec.Command("gcc", "-Wall", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover", "-O1", "-I.", "-o", binary, "-x", "c", "-")
	gcc.Stdin = strings.NewReader(program)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	var asked []uint32
	var in strings.Builder
	for r := range random {
		asked = append(asked, r)
		fmt.Fprintln(&in, r, mean)
	}
	cmd := exec.Command(binary)
	cmd.Stdin, cmd.Stderr = strings.NewReader(in.String()), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	for _, r := range asked {
		var got uint64
		if !lines.Scan() {
			t.Fatal("too few numbers")
		}
		if _, err := fmt.Sscan(lines.Text(), &got); err != nil {
			t.Fatal(err)
		}
		check(r, got)
	}
}

// The number is -ln of a uniform one, times the mean, wherever in its range that lies:
// at its ends, around powers of two, and in between.
func TestExponential(t *testing.T) {
	for _, mean := range []uint64{1, 512, 64 << 10, 1<<20 + 1, 1 << 30} {
		exponential(t, mean, func(yield func(uint32) bool) {
			for bit := range 32 {
				for d := -3; d <= 3; d++ {
					if !yield(uint32(1<<bit + d)) {
						return
					}
				}
			}
			for r := uint64(0); r < 1<<32; r += 1<<32/20000 + 1 {
				if !yield(uint32(r)) {
					return
				}
			}
		}, func(random uint32, got uint64) {
			want := -math.Log((float64(random)+1)/(1<<32)) * float64(mean)
			// It is rounded up, and the logarithm has 28 bits.
			if off := float64(got) - want; off < -float64(mean)/(1<<25) || off > 1+float64(mean)/(1<<25) {
				t.Fatalf("mean %d, random %d: %d, want %f", mean, random, got, want)
			}
		})
	}
}

// Of equally spaced random numbers as many as should are at most s, for any s.
func TestExponentialDistribution(t *testing.T) {
	const mean, n = 1 << 20, 1 << 16
	at := []float64{0.001, 0.01, 0.1, 0.5, 1, 2, 5} // of the mean
	counts := make([]int, len(at))
	sum := 0.0
	exponential(t, mean, func(yield func(uint32) bool) {
		for i := range uint32(n) {
			if !yield(i<<16 + 1<<15) {
				return
			}
		}
	}, func(_ uint32, got uint64) {
		sum += float64(got)
		for i, x := range at {
			if float64(got) <= x*mean {
				counts[i]++
			}
		}
	})
	for i, x := range at {
		if want := -math.Expm1(-x) * n; math.Abs(float64(counts[i])-want) > 1.5 {
			t.Errorf("%d numbers of %d are at most %f of the mean, want %f", counts[i], n, x, want)
		}
	}
	if got := sum / n / mean; math.Abs(got-1) > 1e-4 {
		t.Errorf("the mean is %f of what it should be", got)
	}
}
