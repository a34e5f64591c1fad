// The kernels, written once over 16 lanes. A file per instruction set defines, in its own namespace and
// before including this one: `Lanes` (16 floats) with load, load_partial, store, store_partial, broadcast,
// zero, add, sub, mul, div, fused (a * b + c, rounded once), maximum / minimum (a > b ? a : b, a < b ? a :
// b), square_root, to_power (x * 2^n for integral n in [-126, 127]), round_even, first_lanes (lanes below n
// of a, the others of b), and kTileRows, kTilePanels: how many rows and panels a tile of products holds in
// registers. No include guard: it is included once in each of those files.

constexpr int64_t kLanes = 16;

static inline float sum_lanes(Lanes a) {
  alignas(64) float lane[16];
  store(lane, a);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] = lane[i] + lane[i + width];
  return lane[0];
}

static inline float max_lanes(Lanes a) {
  alignas(64) float lane[16];
  store(lane, a);
  for (int i = 1; i < 16; ++i) lane[0] = lane[0] > lane[i] ? lane[0] : lane[i];
  return lane[0];
}

// exp(x) = 2^n * e^r, n = round(x / ln 2), |r| <= ln(2) / 2; e^r by its Taylor polynomial of degree 7, whose
// remainder is below 2^-27 there. Below -87.3 (the smallest normal result) the result stays at e^-87.3; above
// 88 it stays at e^88. NaN gives NaN.
static inline Lanes exp_lanes(Lanes x) {
  x = maximum(broadcast(-87.3f), x);
  x = minimum(broadcast(88.0f), x);
  Lanes n = round_even(mul(x, broadcast(1.44269504088896341f)));
  Lanes r = fused(n, broadcast(-0.693359375f), x);  // ln 2 in two parts, the first exact in 9 bits
  r = fused(n, broadcast(2.12194440054690583e-4f), r);
  Lanes p = broadcast(1.0f / 5040);
  p = fused(p, r, broadcast(1.0f / 720));
  p = fused(p, r, broadcast(1.0f / 120));
  p = fused(p, r, broadcast(1.0f / 24));
  p = fused(p, r, broadcast(1.0f / 6));
  p = fused(p, r, broadcast(0.5f));
  p = fused(p, r, broadcast(1.0f));
  p = fused(p, r, broadcast(1.0f));
  return to_power(p, n);
}

// erf by formula 7.1.26 of Abramowitz and Stegun, Handbook of Mathematical Functions: |error| <= 1.5e-7.
static inline Lanes erf_lanes(Lanes x) {
  Lanes a = maximum(x, sub(zero(), x));
  Lanes t = div(broadcast(1.0f), fused(broadcast(0.3275911f), a, broadcast(1.0f)));
  Lanes p = broadcast(1.061405429f);
  p = fused(p, t, broadcast(-1.453152027f));
  p = fused(p, t, broadcast(1.421413741f));
  p = fused(p, t, broadcast(-0.284496736f));
  p = fused(p, t, broadcast(0.254829592f));
  p = mul(p, t);
  Lanes y = sub(broadcast(1.0f), mul(p, exp_lanes(sub(zero(), mul(a, a)))));
  return copy_sign(y, x);
}

static inline Lanes activate_lanes(Lanes x, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return maximum(x, zero());
    case Activation::kGelu:
      return mul(mul(broadcast(0.5f), x),
                 add(broadcast(1.0f), erf_lanes(mul(x, broadcast(0.70710678118654752f)))));
    case Activation::kSwish:
      return div(x, add(broadcast(1.0f), exp_lanes(sub(zero(), x))));
  }
  return x;
}

static inline void finish_panel(const LinearArgs& a, Lanes sum, int64_t row, int64_t first, int64_t width) {
  float* out = a.out + row * a.out_stride + first;
  if (width == kLanes) {
    if (a.bias) sum = add(sum, load(a.bias + first));
    sum = activate_lanes(sum, a.activation);
    if (a.residual) sum = add(sum, load(a.residual + row * a.residual_stride + first));
    store(out, sum);
  } else {
    if (a.bias) sum = add(sum, load_partial(a.bias + first, width));
    sum = activate_lanes(sum, a.activation);
    if (a.residual) sum = add(sum, load_partial(a.residual + row * a.residual_stride + first, width));
    store_partial(out, sum, width);
  }
}

template <int kRows, int kPanels>
static inline void linear_tile(const LinearArgs& a, int64_t row, int64_t panel) {
  Lanes sums[kRows][kPanels];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) sums[r][p] = zero();
  const float* x = a.x + row * a.x_stride;
  const float* weights = a.panels + panel * a.k * kLanes;
  for (int64_t k = 0; k < a.k; ++k) {
    Lanes w[kPanels];
    for (int p = 0; p < kPanels; ++p) w[p] = load(weights + (p * a.k + k) * kLanes);
    for (int r = 0; r < kRows; ++r) {
      Lanes value = broadcast(x[r * a.x_stride + k]);
      for (int p = 0; p < kPanels; ++p) sums[r][p] = fused(value, w[p], sums[r][p]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      int64_t first = (panel + p) * kLanes;
      int64_t width = a.n - first < kLanes ? a.n - first : kLanes;
      finish_panel(a, sums[r][p], row + r, first, width);
    }
  }
}

template <int kPanels>
static inline void linear_rows(const LinearArgs& a, int64_t panel) {
  int64_t row = 0;
  for (; row + kTileRows <= a.rows; row += kTileRows) linear_tile<kTileRows, kPanels>(a, row, panel);
  for (; row + 2 <= a.rows; row += 2) linear_tile<2, kPanels>(a, row, panel);
  for (; row < a.rows; ++row) linear_tile<1, kPanels>(a, row, panel);
}

static void linear(const LinearArgs& a) {
  int64_t panels = (a.n + kLanes - 1) / kLanes, panel = 0;
  if (a.rows == 1)
    for (; panel + 2 * kTilePanels <= panels; panel += 2 * kTilePanels)
      linear_tile<1, 2 * kTilePanels>(a, 0, panel);
  for (; panel + kTilePanels <= panels; panel += kTilePanels) linear_rows<kTilePanels>(a, panel);
  for (; panel < panels; ++panel) linear_rows<1>(a, panel);
}

static void norm(const float* x, int64_t rows, int64_t columns, const float* gamma, const float* beta,
                 float epsilon, float* out) {
  int64_t whole = columns / kLanes * kLanes, rest = columns - whole;
  float count = static_cast<float>(columns);
  for (int64_t row = 0; row < rows; ++row, x += columns, out += columns) {
    Lanes sum = zero();
    for (int64_t i = 0; i < whole; i += kLanes) sum = add(sum, load(x + i));
    if (rest) sum = add(sum, load_partial(x + whole, rest));
    Lanes mean = broadcast(sum_lanes(sum) / count);
    Lanes squares = zero();
    for (int64_t i = 0; i < whole; i += kLanes) {
      Lanes d = sub(load(x + i), mean);
      squares = fused(d, d, squares);
    }
    if (rest) {
      Lanes d = first_lanes(sub(load_partial(x + whole, rest), mean), zero(), rest);
      squares = fused(d, d, squares);
    }
    Lanes variance = broadcast(sum_lanes(squares) / count);
    Lanes scale = div(broadcast(1.0f), square_root(add(variance, broadcast(epsilon))));
    for (int64_t i = 0; i < columns; i += kLanes) {
      int64_t width = columns - i < kLanes ? columns - i : kLanes;
      Lanes y = mul(mul(sub(load_partial(x + i, width), mean), scale), load_partial(gamma + i, width));
      if (beta) y = add(y, load_partial(beta + i, width));
      store_partial(out + i, y, width);
    }
  }
}

template <int kChunks>
static inline void weigh_values(const AttendArgs& a, int64_t first, Lanes inverse_sum) {
  Lanes sums[kChunks];
  int64_t last_width = a.head_size - first - (kChunks - 1) * kLanes;
  if (last_width > kLanes) last_width = kLanes;
  for (int c = 0; c < kChunks; ++c) sums[c] = zero();
  for (int64_t key = 0; key < a.keys; ++key) {
    const float* value = a.value_blocks[key / kLanes] + (key % kLanes) * a.value_stride + first;
    Lanes weight = broadcast(a.scores[key]);
    for (int c = 0; c < kChunks - 1; ++c) sums[c] = fused(weight, load(value + c * kLanes), sums[c]);
    constexpr int c = kChunks - 1;
    sums[c] =
        fused(weight,
              last_width == kLanes ? load(value + c * kLanes) : load_partial(value + c * kLanes, last_width),
              sums[c]);
  }
  for (int c = 0; c < kChunks; ++c)
    store_partial(a.out + first + c * kLanes, mul(sums[c], inverse_sum),
                  c == kChunks - 1 ? last_width : kLanes);
}

static void attend(const AttendArgs& a) {
  Lanes minus_infinity = broadcast(-__builtin_inff());
  Lanes max = minus_infinity;
  for (int64_t block = 0, key = 0; key < a.keys; ++block, key += kLanes) {
    Lanes score = zero();
    const float* keys = a.key_blocks[block];
    for (int64_t d = 0; d < a.head_size; ++d)
      score = fused(broadcast(a.query[d]), load(keys + d * a.key_stride), score);
    score = mul(score, broadcast(a.scale));
    // What lies behind the last key is unused cache: it may hold anything and must not be seen.
    score = first_lanes(score, minus_infinity, a.keys - key);
    store(a.scores + key, score);
    max = maximum(score, max);
  }
  Lanes top = broadcast(max_lanes(max));
  Lanes sum = zero();
  for (int64_t key = 0; key < a.keys; key += kLanes) {
    Lanes weight = first_lanes(exp_lanes(sub(load(a.scores + key), top)), zero(), a.keys - key);
    store(a.scores + key, weight);
    sum = add(sum, weight);
  }
  Lanes inverse_sum = broadcast(1.0f / sum_lanes(sum));
  int64_t first = 0;
  for (; first + 4 * kLanes <= a.head_size; first += 4 * kLanes) weigh_values<4>(a, first, inverse_sum);
  for (; first + kLanes < a.head_size; first += 2 * kLanes) weigh_values<2>(a, first, inverse_sum);
  for (; first < a.head_size; first += kLanes) weigh_values<1>(a, first, inverse_sum);
}

static void max_sum_exp(const float* x, int64_t n, float* max, float* sum) {
  Lanes minus_infinity = broadcast(-__builtin_inff());
  Lanes top = minus_infinity;
  for (int64_t i = 0; i < n; i += kLanes) {
    int64_t width = n - i < kLanes ? n - i : kLanes;
    top = maximum(first_lanes(load_partial(x + i, width), minus_infinity, width), top);
  }
  *max = max_lanes(top);
  Lanes total = zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    int64_t width = n - i < kLanes ? n - i : kLanes;
    total =
        add(total, first_lanes(exp_lanes(sub(load_partial(x + i, width), broadcast(*max))), zero(), width));
  }
  *sum = sum_lanes(total);
}

static void exp_all(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    int64_t width = n - i < kLanes ? n - i : kLanes;
    store_partial(out + i, exp_lanes(load_partial(x + i, width)), width);
  }
}

static void activate_all(const float* x, int64_t n, Activation activation, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    int64_t width = n - i < kLanes ? n - i : kLanes;
    store_partial(out + i, activate_lanes(load_partial(x + i, width), activation), width);
  }
}
