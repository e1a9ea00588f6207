// Loops over byte rows that compilers vectorise by themselves, included once per instruction set: ACCDP_ISA names the
// namespace, and the includer has set the compiler's target. Every include of a standard header stands in the includer,
// before the target changes, so that no shared inline function is compiled for the wrong processor.

namespace accdp::ACCDP_ISA {

inline void part_exponents(std::uint8_t* __restrict high, std::uint8_t* __restrict low) {
  for (std::size_t i = 0; i < kRow; ++i) {
    const std::uint8_t h = high[i], l = low[i];
    high[i] = static_cast<std::uint8_t>(h << 1 | l >> 7);
    low[i] = static_cast<std::uint8_t>((h & 0x80) | (l & 0x7f));
  }
}

inline void join_exponents(std::uint8_t* __restrict high, std::uint8_t* __restrict low) {
  for (std::size_t i = 0; i < kRow; ++i) {
    const std::uint8_t exponent = high[i], rest = low[i];
    high[i] = static_cast<std::uint8_t>((rest & 0x80) | exponent >> 1);
    low[i] = static_cast<std::uint8_t>(exponent << 7 | (rest & 0x7f));
  }
}

inline void part_half(std::uint8_t* __restrict high, std::uint8_t* __restrict top) {
  for (std::size_t i = 0; i < kRow; ++i) {
    const std::uint8_t h = high[i];
    top[i] = static_cast<std::uint8_t>((h & 3) | (h >> 5 & 4));
    high[i] = h >> 2 & 31;
  }
}

inline void join_half(std::uint8_t* __restrict high, const std::uint8_t* __restrict top) {
  for (std::size_t i = 0; i < kRow; ++i)
    high[i] = static_cast<std::uint8_t>((top[i] & 3) | (top[i] & 4) << 5 | (high[i] & 31) << 2);
}

inline void make_codes(const std::uint8_t* __restrict exponents, CodeRange range, std::uint8_t* __restrict codes) {
  for (std::size_t i = 0; i < kRow; ++i) {
    const auto distance = static_cast<std::uint8_t>(range.base - exponents[i]);
    codes[i] = distance < range.first_unused ? distance : range.escape;
  }
  if (!range.has_zero) return;
  for (std::size_t i = 0; i < kRow; ++i) codes[i] = exponents[i] == 0 ? range.first_unused : codes[i];
}

inline void from_codes(std::uint8_t* row, CodeRange range) {
  if (range.has_zero) {
    for (std::size_t i = 0; i < kRow; ++i) {
      const std::uint8_t code = row[i];
      row[i] = code == range.first_unused ? std::uint8_t{0} : static_cast<std::uint8_t>(range.base - code);
    }
  } else {
    for (std::size_t i = 0; i < kRow; ++i) row[i] = static_cast<std::uint8_t>(range.base - row[i]);
  }
}

inline std::uint8_t largest(const std::uint8_t* row) {
  std::uint8_t most = 0;
  for (std::size_t i = 0; i < kRow; ++i) most = row[i] > most ? row[i] : most;
  return most;
}

inline bool any(const std::uint8_t* row) {
  std::uint8_t bits = 0;
  for (std::size_t i = 0; i < kRow; ++i) bits |= row[i];
  return bits != 0;
}

// Four numbers are written where at least one is due: a branch less for most words, which have few bits.
inline std::size_t list_ones(const std::uint64_t* words, std::uint16_t* at) {
  std::size_t count = 0;
  for (std::size_t w = 0; w < kRow / 64; ++w) {
    std::uint64_t left = words[w];
    const auto here = static_cast<std::size_t>(__builtin_popcountll(left));
    for (std::size_t done = 0; done < here; done += 4)
      for (std::size_t i = 0; i < 4; ++i) {
        const int lowest = __builtin_ctzll(left | std::uint64_t{1} << 63);
        at[count + done + i] = static_cast<std::uint16_t>(64 * w + static_cast<std::size_t>(lowest));
        left &= left - 1;
      }
    count += here;
  }
  return count;
}

template <class T>
T ones(int planes) {
  return static_cast<T>(planes == 8 * sizeof(T) ? ~T{0} : (T{1} << planes) - 1);
}

/// The cheapest number of planes; of equally cheap ones the largest, so that every implementation finds the same.
template <class T>
PlaneChoice choose_planes_of(const T* values) {
  T bits = 0;
  for (std::size_t i = 0; i < kRow; ++i) bits |= values[i];
  const int most = bits ? 64 - __builtin_clzll(bits) : 0;
  PlaneChoice best = {most, 0};
  std::size_t lowest = static_cast<std::size_t>(most) * kRow / 8;
  for (int planes = most - 1; planes > 0; --planes) {
    const T escape = ones<T>(planes);
    T from = 0;
    for (std::size_t i = 0; i < kRow; ++i) from = static_cast<T>(from + (values[i] >= escape));
    const std::size_t escaped = std::size_t{from} * sizeof(T);
    const std::size_t cost = static_cast<std::size_t>(planes) * kRow / 8 + escaped;
    if (cost < lowest) {
      lowest = cost;
      best = {planes, from};
    }
    if (escaped >= lowest) break;  // with fewer planes there are no fewer of them
  }
  return best;
}

inline PlaneChoice choose_planes(const void* values, int width) {
  return width == 2 ? choose_planes_of(static_cast<const std::uint16_t*>(values))
                    : choose_planes_of(static_cast<const std::uint32_t*>(values));
}

template <class T>
void clip_to(const T* __restrict values, T escape, T* __restrict codes) {
  for (std::size_t i = 0; i < kRow; ++i) codes[i] = values[i] < escape ? values[i] : escape;
}

inline void clip(const void* values, int width, int planes, void* codes) {
  if (width == 2)
    clip_to(static_cast<const std::uint16_t*>(values), ones<std::uint16_t>(planes), static_cast<std::uint16_t*>(codes));
  else
    clip_to(static_cast<const std::uint32_t*>(values), ones<std::uint32_t>(planes), static_cast<std::uint32_t*>(codes));
}

}  // namespace accdp::ACCDP_ISA
