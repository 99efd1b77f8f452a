package tensors

import "github.com/gpumemtrace/gpumemtrace/internal/model/ledger"

// objectUnit is the unit in which the objects of a sample are counted: a sampled tensor
// stands for a number of them that is not whole.
const objectUnit = 1024

// maxSample bounds the mean distance between two sampled bytes: 1 TiB.
const maxSample = 1 << 40

// weigh returns what a tensor of size bytes counts for that was sampled at a mean
// distance of mean bytes, with the probability p = 1 - exp(-size/mean): 1/p tensors of
// its size. Over all samples that is neither too much nor too little.
func weigh(size, mean uint64) ledger.Weight {
	p := reached(float64(size) / float64(mean))
	if p == 0 {
		return ledger.Weight{}
	}
	return ledger.Weight{Objects: rounded(objectUnit / p), Bytes: rounded(float64(size) / p)}
}

func rounded(v float64) int64 { return int64(v + 0.5) }

// reached returns 1 - exp(-x) for x >= 0. The same x gives the same result on every
// machine: package math's functions differ in their last bit, and a product that is
// added up is rounded once on some machines and twice on others, unless it is converted.
func reached(x float64) float64 {
	if x >= 64 {
		return 1
	}
	halvings := 0
	for ; x > 1.0/16; halvings++ {
		x /= 2
	}
	// The series x - x^2/2! + x^3/3! - ..., from its end.
	sum := 0.0
	for n := 10; n >= 1; n-- {
		sum = 1 - float64(x*sum)/float64(n+1)
	}
	p := float64(x * sum)
	for range halvings {
		p = float64(p * (2 - p))
	}
	return p
}

// weigh returns what a tensor counts for.
func (l *Ledger) weigh(size uint64) ledger.Weight {
	if l.sample == 0 {
		return ledger.Weight{Objects: 1, Bytes: int64(size)}
	}
	return weigh(size, l.sample)
}

// Objects returns how many tensors n of Rows are: they count for others, too.
func (l *Ledger) Objects(n int64) int64 {
	if l.sample == 0 {
		return n
	}
	return (n + objectUnit/2) / objectUnit
}
