// Something with many inlined functions, for comparison with addr2line.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace model {
struct Layer {
	virtual ~Layer() = default;
	virtual double apply(double) const = 0;
};
template <int N> struct Power : Layer {
	double apply(double x) const override {
		double y = 1;
		for (int i = 0; i < N; i++) y *= x;
		return y;
	}
};
static std::string describe(const std::map<std::string, std::vector<int>> &m) {
	std::string s;
	for (auto &[k, v] : m) {
		s += k;
		for (int i : v) s += std::to_string(i);
	}
	return s;
}
namespace {
int hidden(std::vector<int> v) {
	std::sort(v.begin(), v.end(), [](int a, int b) { return a > b; });
	return v.empty() ? 0 : v[0];
}
} // namespace
} // namespace model

int main(int argc, char **argv) {
	std::map<std::string, std::vector<int>> m;
	for (int i = 0; i < argc; i++) m[argv[i]].push_back(i);
	std::vector<std::unique_ptr<model::Layer>> layers;
	layers.push_back(std::make_unique<model::Power<2>>());
	layers.push_back(std::make_unique<model::Power<5>>());
	double x = argc;
	for (auto &l : layers) x = l->apply(x);
	std::function<int(int)> f = [&](int n) { return n + model::hidden(m["x"]); };
	std::thread t([&] { x += f(3); });
	t.join();
	return printf("%s %g\n", model::describe(m).c_str(), x) < 0;
}
