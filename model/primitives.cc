#include "model/primitives.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "memory/error.h"
#include "model/program.h"

namespace duet::model {

Primitives::Value ReferencePrimitives::keep(std::vector<int64_t> dims, std::vector<float> data) {
  arrays_.push_back({std::move(dims), std::move(data)});
  return {static_cast<int>(arrays_.size()) - 1};
}

Primitives::Value ReferencePrimitives::input(const TensorView& view) {
  auto n = static_cast<size_t>(view.elements());
  std::vector<float> data(n);
  for (size_t i = 0; i < n; ++i)
    data[i] = view.dtype == DType::kF32 ? view.as<const float>()[i]
                                        : static_cast<float>(view.as<const int32_t>()[i]);
  return keep({view.dims, view.dims + view.rank}, std::move(data));
}

Primitives::Value ReferencePrimitives::input_panels(const TensorView& view) {
  int64_t n = view.dims[0], k = view.dims[1];
  std::vector<float> data(static_cast<size_t>(n * k));
  const float* panels = view.as<const float>();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j)
      data[static_cast<size_t>(i * k + j)] =
          panels[(i / kPanelWidth * k + j) * kPanelWidth + i % kPanelWidth];
  return keep({n, k}, std::move(data));
}

Primitives::Value ReferencePrimitives::constant(float value) { return keep({1}, {value}); }

Primitives::Value ReferencePrimitives::matmul(Value a, Value b) {
  const Array &x = at(a), &y = at(b);
  int64_t m = x.dims[0], k = x.dims[1], n = y.dims[1];
  DUET_CHECK(y.dims[0] == k);
  std::vector<float> out(static_cast<size_t>(m * n));
  std::vector<double> row(static_cast<size_t>(n));
  for (int64_t i = 0; i < m; ++i) {
    std::fill(row.begin(), row.end(), 0.0);
    for (int64_t j = 0; j < k; ++j) {
      double value = x.data[static_cast<size_t>(i * k + j)];
      const float* weights = y.data.data() + j * n;
      for (int64_t c = 0; c < n; ++c) row[static_cast<size_t>(c)] += value * weights[c];
    }
    std::transform(row.begin(), row.end(), out.begin() + i * n,
                   [](double v) { return static_cast<float>(v); });
  }
  return keep({m, n}, std::move(out));
}

template <class F>
Primitives::Value ReferencePrimitives::map(Value a, F f) {
  std::vector<float> out(at(a).data.size());
  std::transform(at(a).data.begin(), at(a).data.end(), out.begin(),
                 [&](float v) { return static_cast<float>(f(static_cast<double>(v))); });
  return keep(at(a).dims, std::move(out));
}

template <class F>
Primitives::Value ReferencePrimitives::zip(Value a, Value b, F f) {
  const Array &x = at(a), &y = at(b);
  int64_t columns = x.dims.empty() ? 1 : x.dims.back();
  auto size = static_cast<int64_t>(x.data.size()), other = static_cast<int64_t>(y.data.size());
  bool column = y.dims.size() == 2 && y.dims[1] == 1 && y.dims[0] == x.dims[0] && other != size;
  DUET_CHECK(other == size || other == 1 || column || other == columns);
  std::vector<float> out(x.data.size());
  for (int64_t i = 0; i < size; ++i) {
    int64_t j = other == size ? i : other == 1 ? 0 : column ? i / columns : i % columns;
    out[static_cast<size_t>(i)] = static_cast<float>(f(static_cast<double>(x.data[static_cast<size_t>(i)]),
                                                       static_cast<double>(y.data[static_cast<size_t>(j)])));
  }
  return keep(x.dims, std::move(out));
}

template <class F>
Primitives::Value ReferencePrimitives::fold_columns(Value a, double start, F f) {
  const Array& x = at(a);
  int64_t rows = x.rows(), columns = x.columns();
  std::vector<float> out(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    double total = start;
    for (int64_t j = 0; j < columns; ++j)
      total = f(total, static_cast<double>(x.data[static_cast<size_t>(i * columns + j)]));
    out[static_cast<size_t>(i)] = static_cast<float>(total);
  }
  return keep({rows, 1}, std::move(out));
}

Primitives::Value ReferencePrimitives::add(Value a, Value b) {
  return zip(a, b, [](double x, double y) { return x + y; });
}
Primitives::Value ReferencePrimitives::mul(Value a, Value b) {
  return zip(a, b, [](double x, double y) { return x * y; });
}
Primitives::Value ReferencePrimitives::exp(Value a) {
  return map(a, [](double x) { return std::exp(x); });
}
Primitives::Value ReferencePrimitives::erf(Value a) {
  return map(a, [](double x) { return std::erf(x); });
}
Primitives::Value ReferencePrimitives::rsqrt(Value a) {
  return map(a, [](double x) { return 1 / std::sqrt(x); });
}
Primitives::Value ReferencePrimitives::maximum(Value a, float floor) {
  return map(a, [floor](double x) { return std::max(x, static_cast<double>(floor)); });
}
Primitives::Value ReferencePrimitives::max_columns(Value a) {
  return fold_columns(a, -std::numeric_limits<double>::infinity(),
                      [](double t, double x) { return std::max(t, x); });
}
Primitives::Value ReferencePrimitives::sum_columns(Value a) {
  return fold_columns(a, 0, [](double t, double x) { return t + x; });
}

Primitives::Value ReferencePrimitives::slice(Value a, int axis, int64_t begin, int64_t end) {
  const Array& x = at(a);
  DUET_CHECK(axis == 0 || (axis == 1 && x.dims.size() == 2));
  int64_t columns = x.columns();
  std::vector<int64_t> dims = x.dims;
  dims[static_cast<size_t>(axis)] = end - begin;
  std::vector<float> out;
  if (axis == 0) {
    out.assign(x.data.begin() + begin * columns, x.data.begin() + end * columns);
  } else {
    for (int64_t i = 0; i < x.rows(); ++i)
      out.insert(out.end(), x.data.begin() + i * columns + begin, x.data.begin() + i * columns + end);
  }
  return keep(std::move(dims), std::move(out));
}

Primitives::Value ReferencePrimitives::concat(std::span<const Value> parts, int axis) {
  std::vector<int64_t> dims = at(parts[0]).dims;
  dims[static_cast<size_t>(axis)] = 0;
  for (Value part : parts) dims[static_cast<size_t>(axis)] += at(part).dims[static_cast<size_t>(axis)];
  std::vector<float> out;
  int64_t groups = axis == 0 ? 1 : dims[0];
  for (int64_t group = 0; group < groups; ++group) {
    for (Value part : parts) {
      auto width = static_cast<int64_t>(at(part).data.size()) / groups;
      out.insert(out.end(), at(part).data.begin() + group * width,
                 at(part).data.begin() + (group + 1) * width);
    }
  }
  return keep(std::move(dims), std::move(out));
}

Primitives::Value ReferencePrimitives::gather(Value table, std::span<const int32_t> rows) {
  const Array& x = at(table);
  int64_t columns = x.columns();
  std::vector<int64_t> dims = x.dims;
  dims[0] = static_cast<int64_t>(rows.size());
  std::vector<float> out;
  for (int32_t row : rows) {
    DUET_CHECK(row >= 0 && row < x.rows());
    out.insert(out.end(), x.data.begin() + row * columns, x.data.begin() + (row + 1) * columns);
  }
  return keep(std::move(dims), std::move(out));
}

Primitives::Value ReferencePrimitives::transpose(Value a) {
  const Array& x = at(a);
  int64_t m = x.dims[0], n = x.dims[1];
  std::vector<float> out(x.data.size());
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      out[static_cast<size_t>(j * m + i)] = x.data[static_cast<size_t>(i * n + j)];
  return keep({n, m}, std::move(out));
}

void ReferencePrimitives::name(Value a, const std::string& name) {
  if (observer_) observer_(name, at(a).dims, at(a).data);
}

void ReferencePrimitives::store(Value a, const TensorView& out) {
  const Array& x = at(a);
  DUET_CHECK(static_cast<int64_t>(x.data.size()) == out.elements());
  for (size_t i = 0; i < x.data.size(); ++i) {
    if (out.dtype == DType::kF32)
      out.as<float>()[i] = x.data[i];
    else
      out.as<int32_t>()[i] = static_cast<int32_t>(x.data[i]);
  }
}

}  // namespace duet::model
